"""Maps from one space of rows to another: linear ones solved exactly, and invertible and free networks."""
