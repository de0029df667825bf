// Command drtmx runs the data servers of a drtmx cluster and the TPC-C
// workload against them.
//
// Its command line and the JSON report are stable, because scripts rely on them;
// docs/operations.md describes both.
package main

import (
	"os"

	"drtmx/internal/command"
)

func main() { os.Exit(command.Main(os.Args[1:], os.Stdout, os.Stderr)) }
