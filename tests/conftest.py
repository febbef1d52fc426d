"""What takes longest is begun first; there is little garbage to look for meanwhile."""

import gc

LONG = """
    test_drop_in_random test_examine_mistakes test_second_random test_mistaken_second test_museum test_drop_in_memory
    test_examine_second test_careless test_vectors test_examine_layer test_examine_diagnosis training test_layer_reference test_displays test_heads test_kernels test_training
    test_attention test_page_judge test_wheel scale laws reading_heads test_book inputs cross
    test_page_slips test_page_misprints
""".split()  # a file that is not here is long if it has many tests


def pytest_collection_modifyitems(items):
    tests = {}
    for item in items:
        tests[item.path] = tests.get(item.path, 0) + 1
    items.sort(key=lambda item: place(item.path, tests[item.path]))


def place(path, tests):
    return LONG.index(path.stem) if path.stem in LONG else len(LONG), -tests, str(path)


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(100_000)
