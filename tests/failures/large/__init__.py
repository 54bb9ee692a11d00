"""An Agent whose service answers as much as may be kept, and a definition with as many steps as there may be."""
