"""``gravac report``: a trace as one page that needs no server, and as a picture."""
