"""The files of the live page, and the HTML of the API documentation.

``static/`` has plain ES modules, which the controller joins into one script when it starts. They form four groups:

- Connection: one event stream for the job on show, one poll for the list of jobs, and requests for what is older.
- State: one module folds what arrives into rows and columns, and knows nothing of the document. A running job, a trace
  or a report feeds it.
- Charts: one module says what each chart shows. The others draw them with one axis, one zoom and one cursor.
- Panels: each part of the page has a module. One module holds them together with the selected window.

Third-party files are in ``static/vendor/``, unchanged, with license and hash.
"""
