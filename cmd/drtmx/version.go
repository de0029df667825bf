package main

import (
	"fmt"

	"drtmx/internal/cli"
)

// commit is set by the Makefile.
var commit = ""

func versionLine() string { return fmt.Sprintf("drtmx %s (%s)", cli.Version, cli.Build(commit)) }
