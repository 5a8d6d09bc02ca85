"""The files of the live page, and the HTML of the API documentation."""
