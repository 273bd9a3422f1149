# Structure checks run as ctests: layers, every header compiles alone, file length.
