"""Other systems, the paper's tables and studies, comparisons, searches: no part of the library."""
