"""What bench/verdict and bench/copy-verdict share: each case with an older program too."""
import random

from tools import FULLBORE


def beside_old(run, old):
    """`run(program, label)` with the new program and, if there is one, the old one; whose turn is first is drawn"""
    turns = [("new", FULLBORE, "")] + ([("old", old, "-old")] if old else [])
    results = {name: run(program, label) for name, program, label in random.sample(turns, len(turns))}
    return dict(results["new"], **({"old": results["old"]} if old else {}))


def agreement(rows):
    """how many cases each program named correctly, and which of them only one did"""
    names = {(True, True): "both right", (True, False): "right by the new one alone", (False, True): "right by the older one alone", (False, False): "neither"}
    print("\nof %d cases, right: %d by the new program, %d by the older one" % (len(rows), sum(r["right"] for r in rows), sum(r["old"]["right"] for r in rows)))
    for key, name in names.items():
        some = sorted("%(kind)s %(seed)d" % r["case"] for r in rows if (r["right"], r["old"]["right"]) == key)
        print("  %s: %d%s" % (name, len(some), " (%s)" % ", ".join(some) if some and key[0] != key[1] else ""))
