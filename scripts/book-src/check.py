"""Checks the pages that mdBook has made: each link, picture and anchor inside the book is there, and each page is linked.

usage: check.py FOLDER
"""
import os
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if attributes.get("id"):
            self.ids.add(attributes["id"])
        for name in ("href", "src"):
            if attributes.get(name):
                self.links.append(attributes[name])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = sys.argv[1]
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    pages = {os.path.normpath(path): Page(path) for path in paths if path.endswith(".html")}
    files = {os.path.normpath(path) for path in paths}
    wrong, links = [], 0
    for path, page in pages.items():
        # The page for unknown addresses has its links from the root of the site.
        if os.path.basename(path) == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            target = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path))) if parts.path else path
            if target not in files:
                wrong.append(f"{path}: {link}: there is no {target}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{path}: {link}: {target} has no such anchor")
    if not links:
        wrong.append(f"{root} has no links: it is no book")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages, {links} links inside the book, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


main()
