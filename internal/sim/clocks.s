// The functions without bodies in clocks.go need a file of assembly.
