package command

import (
	"net"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cluster"
)

// freeports VAR VAR sets variables to two addresses with successive ports.
func freePorts(ts *testscript.TestScript, _ bool, args []string) {
	for range 100 {
		addrs, err := cluster.LoopbackAddrs(1)
		ts.Check(err)
		host, port, _ := net.SplitHostPort(addrs[0])
		n, _ := strconv.Atoi(port)
		next := net.JoinHostPort(host, strconv.Itoa(n+1))
		if l, err := net.Listen("tcp", next); err == nil {
			l.Close()
			ts.Setenv(args[0], addrs[0])
			ts.Setenv(args[1], next)
			return
		}
	}
	ts.Fatalf("no two free ports in succession")
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
