"""A set of wrong clients and balancers to measure the search with: nobody has tuned it to them, and nobody shall.

Each is the complete client of docs/examples, or the reference's balancer, with one fault that a person could have made.
Unlike the planted bugs they prove no invariant: they say how many of such faults a search meets. `ALL`: by name.
"""

from tests.power.wrong import alignment, liveness, numbers, races, rare, routing

KINDS = {
    "alignment": alignment.WRONG,
    "liveness": liveness.WRONG,
    "numbers": numbers.WRONG,
    "races": races.WRONG,
    "rare": rare.WRONG,
    "routing": routing.WRONG,
}
ALL = {name: wrong for kind in KINDS.values() for name, wrong in kind.items()}
