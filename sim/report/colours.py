"""One colour a fate, in every picture; distinguishable without red and green."""

FATE_COLOURS = {
    "kept": "#3d6fa3",
    "overrun": "#d1434b",
    "dropped": "#e8a33d",
    "sliced": "#8c6bb1",
    "zombie": "#4d4d4d",
    "duplicate": "#9c755f",
    "discarded": "#a9b4bd",
    "in_flight": "#5aa9a3",
}
