"""The command line: `ropeteam run | up | watch | snapshot | explain | validate | crd | schema`."""
