package command

import (
	"os"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/testaddr"
)

// freeports VAR VAR sets variables to two addresses with successive ports.
func freePorts(ts *testscript.TestScript, _ bool, args []string) {
	addrs, err := testaddr.New(2)
	ts.Check(err)
	ts.Setenv(args[0], addrs[0])
	ts.Setenv(args[1], addrs[1])
}

// mode600 FILE... checks that only the owner may read the files.
func mode600(ts *testscript.TestScript, _ bool, args []string) {
	for _, f := range args {
		st, err := os.Stat(ts.MkAbs(f))
		ts.Check(err)
		if st.Mode().Perm() != 0o600 {
			ts.Fatalf("%s has mode %v", f, st.Mode())
		}
	}
}
