package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is the release; commit is set by the Makefile.
var (
	version = "0.1.0"
	commit  = ""
)

// revision is the commit the binary was built from, "unknown" if it was not recorded.
func revision() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

func versionLine() string {
	return fmt.Sprintf("drtmx %s (commit %s, %s, %s/%s)", version, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
