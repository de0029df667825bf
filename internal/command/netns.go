package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
)

// A network of namespaces: one of clients, with a bridge, the store of members and the
// process that supervises hosts, and one of each host, joined by the bridge. Nothing of
// it touches the machine's own network.
const (
	networkNames  = "drtmx-%d-%d" // process that made it, host; 0 is that of clients
	networkEnv    = "DRTMX_NETWORK"
	clientAddr    = "10.77.0.254"
	storeAddr     = "10.77.0.253" // of the store of members, in the namespace of clients
	hostAddr      = "10.77.0.%d"  // of hosts, from 1 on
	networkHosts  = 200           // hosts have addresses below those of clients
	networkBits   = "/24"
	hostPort      = "7000"
	storePort     = "2379"
	nowhereLLAddr = "02:00:00:00:00:01" // no interface has it
)

// network is a network of namespaces.
type network struct {
	maker int // process
	hosts int
}

func (n *network) name(host int) string { return fmt.Sprintf(networkNames, n.maker, host) }

// addr is the address of host i, from 0 on.
func (n *network) addr(i int) string { return fmt.Sprintf(hostAddr, i+1) }

// ip runs the command ip.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// sweepNetworks removes what processes that were killed have left.
func sweepNetworks() {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return
	}
	for _, name := range strings.Fields(string(out)) {
		var pid, i int
		if n, _ := fmt.Sscanf(name, networkNames, &pid, &i); n == 2 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = ip("netns", "del", name)
		}
	}
}

// errNamespaces reports a machine or a user without network namespaces.
var errNamespaces = errors.New("no network namespaces")

// makeNetwork makes a network with so many hosts. remove removes it.
func makeNetwork(hosts int) (n *network, remove func(), err error) {
	switch {
	case os.Getuid() != 0:
		return nil, nil, fmt.Errorf("%w: want root", errNamespaces)
	case hosts > networkHosts:
		return nil, nil, fmt.Errorf("%w for %d hosts: want at most %d", errNamespaces, hosts, networkHosts)
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, nil, fmt.Errorf("%w: %w; it is in the package iproute2", errNamespaces, err)
	}
	sweepNetworks()
	n = &network{maker: os.Getpid(), hosts: hosts}
	client := n.name(0)
	all := [][]string{
		{"netns", "add", client},
		{"-n", client, "link", "set", "lo", "up"},
		{"-n", client, "link", "add", "br0", "type", "bridge"},
		{"-n", client, "addr", "add", clientAddr + networkBits, "dev", "br0"},
		{"-n", client, "addr", "add", storeAddr + networkBits, "dev", "br0"},
		{"-n", client, "link", "set", "br0", "up"},
	}
	for i := range hosts {
		host, port := n.name(i+1), fmt.Sprintf("port%d", i+1)
		all = append(all,
			[]string{"netns", "add", host},
			[]string{"-n", host, "link", "set", "lo", "up"},
			[]string{"-n", client, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host},
			[]string{"-n", client, "link", "set", port, "master", "br0"},
			[]string{"-n", client, "link", "set", port, "up"},
			[]string{"-n", host, "addr", "add", n.addr(i) + networkBits, "dev", "eth0"},
			[]string{"-n", host, "link", "set", "eth0", "up"},
		)
	}
	remove = func() {
		for i := range hosts + 1 {
			_ = ip("netns", "del", n.name(i))
		}
	}
	for _, a := range all {
		if err := ip(a...); err != nil {
			remove()
			return nil, nil, fmt.Errorf("%w: %w", errNamespaces, err)
		}
	}
	return n, remove, nil
}

// enterNetwork runs this command again in the namespace of clients of a new network.
// inside reports that this is that process. The error of the other one is the exit
// status of that.
func (a *app) enterNetwork(ctx context.Context, hosts int) (inside bool, err error) {
	if os.Getenv(networkEnv) != "" {
		return true, nil
	}
	n, remove, err := makeNetwork(hosts)
	if err != nil {
		return false, err
	}
	defer remove()
	exe, err := os.Executable()
	if err != nil {
		return false, err
	}
	c := exec.Command("ip", append([]string{"netns", "exec", n.name(0), exe}, os.Args[1:]...)...)
	c.Env = append(os.Environ(), networkEnv+"="+strconv.Itoa(n.maker))
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.Start(); err != nil {
		return false, err
	}
	a.AtKill(func() { _ = c.Process.Kill() })
	stop := context.AfterFunc(ctx, func() { _ = c.Process.Signal(syscall.SIGINT) })
	defer stop()
	err = c.Wait()
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.Exited() {
		return false, cli.Exited(exited.ExitCode())
	}
	return false, err
}

// enteredNetwork is the network that this process is in.
func enteredNetwork(hosts int) *network {
	maker, _ := strconv.Atoi(os.Getenv(networkEnv))
	return &network{maker: maker, hosts: hosts}
}

// place lets each host of a cluster run in its namespace.
func (n *network) place(o *cluster.StartOptions) {
	for i := range o.Addrs {
		o.Addrs[i] = net.JoinHostPort(n.addr(i), hostPort)
	}
	o.Hosts.Store = net.JoinHostPort(storeAddr, storePort)
	o.Hosts.Command = func(host int, command []string) []string {
		return append([]string{"ip", "netns", "exec", n.name(host + 1)}, command...)
	}
}

// peers are the namespaces, and the addresses there, that a cut of host i is from.
func (n *network) peers(i int, from string) (names, addrs []string) {
	if from != cutHosts {
		names, addrs = append(names, ""), append(addrs, storeAddr) // what it sends is lost, what the store sends is not
	}
	if from == cutAll {
		names, addrs = append(names, n.name(0)), append(addrs, clientAddr)
	}
	for k := range n.hosts {
		if k != i && from != cutStore {
			names, addrs = append(names, n.name(k+1)), append(addrs, n.addr(k))
		}
	}
	return names, addrs
}

// cut loses what host i, from 0 on, sends to others and what they send to it: neither
// side is told. The neighbour has an address on the link that nobody has.
func (n *network) cut(i int, from string) error {
	names, addrs := n.peers(i, from)
	return n.link(i, names, addrs, func(ns, addr, dev string) error {
		return ip("-n", ns, "neigh", "replace", addr, "lladdr", nowhereLLAddr, "nud", "permanent", "dev", dev)
	})
}

// heal ends all cuts of host i.
func (n *network) heal(i int) error {
	names, addrs := n.peers(i, cutAll)
	return n.link(i, names, addrs, func(ns, addr, dev string) error {
		_ = ip("-n", ns, "neigh", "del", addr, "dev", dev) // there may be none
		return nil
	})
}

func (n *network) link(i int, names, addrs []string, do func(ns, addr, dev string) error) error {
	var errs []error
	for k, addr := range addrs {
		errs = append(errs, do(n.name(i+1), addr, "eth0"))
		if names[k] == "" {
			continue
		}
		dev := "eth0"
		if names[k] == n.name(0) {
			dev = "br0"
		}
		errs = append(errs, do(names[k], n.addr(i), dev))
	}
	return errors.Join(errs...)
}

// runDirOf is the runtime directory of hosts with their data in a directory.
func runDirOf(data string) (string, error) { return filepath.Abs(filepath.Join(data, runDir)) }
