"""A table of things by name, which a project can add to."""

import pytest

from sim.registry import FROM_PLUGINS, RegistrationError, Registry, import_from_here


@pytest.fixture
def colours():
    table = Registry("colour")
    table.add("red", "#f00")
    table.add("dark-blue_2", "#008")
    return table


def test_it_reads_as_a_mapping_in_the_order_of_registration(colours):
    assert list(colours) == ["red", "dark-blue_2"]
    assert (colours["red"], colours.values(), len(colours)) == ("#f00", ["#f00", "#008"], 2)
    assert colours.items() == [("red", "#f00"), ("dark-blue_2", "#008")]
    assert "red" in colours
    assert "green" not in colours
    with pytest.raises(KeyError):
        colours["green"]


def test_a_name_stands_for_one_thing(colours):
    with pytest.raises(RegistrationError, match="the colour 'red' is registered already"):
        colours.add("red", "#e00")
    assert colours["red"] == "#f00"


def test_the_same_thing_twice_is_no_error():
    table, thing = Registry("thing"), object()
    assert table.add("one", thing) is table.add("one", thing) is thing


@pytest.mark.parametrize("name", ["", "light blue", "a.b", "a:b", "é!", "-", "__"])
def test_what_cannot_be_a_name(colours, name):
    with pytest.raises(RegistrationError, match="is no name for a colour: letters, digits, - and _ are allowed"):
        colours.add(name, "#fff")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "dark-blue",
            "unknown colour 'dark-blue' (did you mean dark-blue_2?); known are red, dark-blue_2; " + FROM_PLUGINS,
        ),
        ("green", "unknown colour 'green'; known are red, dark-blue_2; " + FROM_PLUGINS),
    ],
)
def test_of_an_unknown_name_it_tells_the_closest_and_all(colours, name, told):
    assert colours.find(name) is None
    assert colours.unknown(name) == told


def test_what_is_added_meanwhile_can_be_forgotten(colours):
    with colours.forgetting():
        colours.add("green", "#0f0")
    assert list(colours) == ["red", "dark-blue_2"]
    colours.add("green", "#0e0")


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])
    (tmp_path / "module_of_test_registry.py").write_text("HERE = True")
    assert import_from_here("module_of_test_registry").HERE
