"""A preprocessor of mdBook: links that leave the book's folder lead to the files of the repository, and those to a README.md to
the page that mdBook makes of it, which is index.html.

mdBook gives the context and the book as JSON on standard input, and takes the book from standard output. Links inside fenced
blocks stay as they are.
"""
import json
import posixpath
import re
import sys

LINK = re.compile(r"(\]\()([^)\s:]+)(\))")


def outside(path, source, folder):
    """The path of a link from the root of the repository, if it leaves the book's folder."""
    place = posixpath.normpath(posixpath.join(folder, posixpath.dirname(source), path))
    return None if place == folder or place.startswith(folder + "/") else place


def rewrite(text, source, folder, repository):
    def replace(match):
        path, hash_, anchor = match[2].partition("#")
        place = outside(path, source, folder)
        if place:
            path = f"{repository}/blob/main/{place}"
        elif posixpath.basename(path) == "README.md":
            path = path.removesuffix("README.md") + "index.md"
        return match[1] + path + hash_ + anchor + match[3]

    fenced, lines = False, []
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        lines.append(line if fenced else LINK.sub(replace, line))
    return "\n".join(lines)


def walk(items, folder, repository):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter["source_path"]:
                chapter["content"] = rewrite(chapter["content"], chapter["source_path"], folder, repository)
            walk(chapter["sub_items"], folder, repository)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    config = context["config"]
    walk(book["items"], config["book"]["src"], config["output"]["html"]["git-repository-url"])
    json.dump(book, sys.stdout)


main()
