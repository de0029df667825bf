package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// haveHosts reports whether network namespaces, and slow links between them, can
// be made here.
func haveHosts() bool {
	if os.Getuid() != 0 {
		return false
	}
	sweepHosts()
	name := hostName(0)
	if ip("netns", "add", name) != nil {
		return false
	}
	defer func() { _ = ip("netns", "del", name) }()
	return ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1") == nil &&
		ip("-n", name, "link", "add", "br0", "type", "bridge") == nil &&
		exec.Command("tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "20mbit", "burst", "32kb", "latency", "100ms").Run() == nil
}

// sweepHosts removes what tests that were killed have left.
func sweepHosts() {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return
	}
	for _, name := range strings.Fields(string(out)) {
		var pid, i int
		if n, _ := fmt.Sscanf(name, hostNames, &pid, &i); n == 2 && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = ip("netns", "del", name)
		}
	}
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// hostName is of the network namespace that stands for host i; 0 is the
// client's, which holds the bridge, too.
func hostName(i int) string { return fmt.Sprintf(hostNames, os.Getpid(), i) }

const hostNames = "drtmx-%d-%d" // process, host

// hosts VAR... makes a network of a client's host and of as many others as
// there are variables but one: the first is set to the client's namespace, the
// others to those of 10.77.0.1, 10.77.0.2 and so on. Nothing of it touches the
// machine's own network, and it is gone when the script ends.
func hosts(ts *testscript.TestScript, _ bool, args []string) {
	client := hostName(0)
	all := [][]string{
		{"netns", "add", client},
		{"-n", client, "link", "set", "lo", "up"},
		{"-n", client, "link", "add", "br0", "type", "bridge"},
		{"-n", client, "addr", "add", "10.77.0.254/24", "dev", "br0"},
		{"-n", client, "link", "set", "br0", "up"},
	}
	ts.Setenv(args[0], client)
	for i, name := range args[1:] {
		host, port := hostName(i+1), fmt.Sprintf("port%d", i+1)
		all = append(all,
			[]string{"netns", "add", host},
			[]string{"-n", host, "link", "set", "lo", "up"},
			[]string{"-n", client, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host},
			[]string{"-n", client, "link", "set", port, "master", "br0"},
			[]string{"-n", client, "link", "set", port, "up"},
			[]string{"-n", host, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", "eth0"},
			[]string{"-n", host, "link", "set", "eth0", "up"},
		)
		ts.Setenv(name, host)
	}
	ts.Defer(func() {
		for i := range args {
			_ = ip("netns", "del", hostName(i))
		}
	})
	for _, a := range all {
		ts.Check(ip(a...))
	}
}
