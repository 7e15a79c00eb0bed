"""Measures relays side by side: `./dev bench`. docs/performance.md says what each figure means.

`__main__` runs the steps, `steps` are what is measured, `load` is the load generator, `servers` are the relays, of
which `reference` and `nothing` are written here, and `report` turns figures into a table and charts.
"""
