package main

import (
	"math"
	"net"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cluster"
)

// samerounds A B compares what transactions asked of the network in two
// reports. Orders differ in length and transactions are repeated now and then.
func sameRounds(ts *testscript.TestScript, _ bool, args []string) {
	a, b := readReport(ts, args[0]), readReport(ts, args[1])
	for name := range b.Types {
		for what, v := range map[string][2]float64{
			"rounds": {a.Rounds[name], b.Rounds[name]}, "RPCs": {a.RPCs[name], b.RPCs[name]}, "READs": {a.Reads[name], b.Reads[name]},
		} {
			if limit := 0.1*v[1] + a.Retries[name] + b.Retries[name] + 0.05; math.Abs(v[0]-v[1]) > limit {
				ts.Fatalf("%s: %v %s for each transaction over %s, %v over %s", name, v[0], what, a.Fabric, v[1], b.Fabric)
			}
		}
	}
}

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
