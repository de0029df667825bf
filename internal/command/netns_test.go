package command

import (
	"os/exec"

	"github.com/rogpeppe/go-internal/testscript"
)

// haveHosts reports whether network namespaces, and slow links between them, can
// be made here.
func haveHosts() bool {
	n, remove, err := makeNetwork(1)
	if err != nil {
		return false
	}
	defer remove()
	return exec.Command("tc", "-n", n.name(0), "qdisc", "add", "dev", "port1", "root", "tbf", "rate", "20mbit", "burst", "32kb", "latency", "100ms").Run() == nil
}

// hosts VAR... makes a network of a client's host and of as many others as
// there are variables but one: the first is set to the client's namespace, the
// others to those of 10.77.0.1, 10.77.0.2 and so on. Nothing of it touches the
// machine's own network, and it is gone when the script ends.
func hosts(ts *testscript.TestScript, _ bool, args []string) {
	n, remove, err := makeNetwork(len(args) - 1)
	ts.Check(err)
	ts.Defer(remove)
	for i, name := range args {
		ts.Setenv(name, n.name(i))
	}
}
