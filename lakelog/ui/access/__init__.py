"""Decides who may see the pages and who may change the root.

options.py    the options of the server: token, names of the host, which contents and changes are allowed
sessions.py   sessions in signed cookies, and the tokens that protect forms
tls.py        checks the files of a server with TLS
guard.py      checks each request before a page sees it, and adds the headers of each answer
"""
