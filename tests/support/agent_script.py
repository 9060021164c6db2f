"""A coding agent for tests, as one script: it reads its prompt from stdin and obeys `AGENT:<word>` in the ticket.

It is given to the sandbox as `python3 -c`, so it imports nothing but the standard library.
"""

import json
import pathlib
import re
import sys
import time

prompt = sys.stdin.read()
words = set(re.findall(r"AGENT:([a-z-]+)", prompt))
rework = "(rework)" in prompt.splitlines()[0]
scope = re.search(r'<data name="scope"[^>]*>\n- (\S+)', prompt)


def write(path: str, text: str) -> None:
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


if prompt.startswith("You are the QA engineer"):
    write(".qa-evidence/exchange.txt", "GET / -> 200\n")
    verdict = "fail" if "qa-fails" in words else "pass"
    print(
        "I looked at it. "
        + json.dumps({"verdict": verdict, "comments": [], "evidence_files": [".qa-evidence/exchange.txt"]})
    )
    sys.exit(0)
if "hang" in words:
    time.sleep(3600)
if "crash" in words:
    sys.exit(3)
if "idle" in words:
    print("Nothing to do.")
    sys.exit(0)

glob = scope.group(1) if scope else "**"
folder = "" if glob.startswith("**") else glob.split("*")[0]
number = len(list(pathlib.Path(folder or ".").glob("change-*.txt"))) + 1
write(f"{folder}change-{number}.txt", f"change {number}\n")
if "no-tests" not in words and not folder:
    fails = "fail-always" in words or ("fail-once" in words and not rework)
    write(".devcontainer/test.sh", "echo the tests speak\nexit 1\n" if fails else "echo all good\n")
if "auth" in words:
    write("src/auth.py", "TOKEN = None\n")
print("Done.")
