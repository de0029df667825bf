package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
	"drtmx/rdma"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
)

// Fabrics of the command line.
const (
	fabricShm    = "shm"
	fabricInproc = "inproc"
	fabricTCP    = "tcp"
	fabricVerbs  = "verbs"
)

var fabrics = []string{fabricShm, fabricInproc, fabricTCP, fabricVerbs}

func checkFabric(name string) error {
	if slices.Contains(fabrics, name) {
		return nil
	}
	return fmt.Errorf("--fabric %q: want %s", name, oneOf(fabrics))
}

// shmAvailable is shm.Available, or a test's answer.
var shmAvailable = shm.Available

func newShm() (rdma.Provider, error) {
	if err := shmAvailable(); err != nil {
		return nil, err
	}
	return shm.New(shm.Options{})
}

// tlsFlags say how processes that talk over TCP know each other.
type tlsFlags struct {
	ca, cert, key string
	insecure      bool
	device        string // of RDMA
}

func (t *tlsFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&t.ca, "tls-ca", "", "with TCP: PEM file of the authorities that sign servers and clients; drtmx certs makes a set for trying out")
	c.Flags().StringVar(&t.cert, "tls-cert", "", "with TCP: PEM file of this process's certificate")
	c.Flags().StringVar(&t.key, "tls-key", "", "with TCP: PEM file of its key")
	c.Flags().BoolVar(&t.insecure, "insecure", false, "with TCP: allow plain text beyond this machine; everyone who reaches a port can read and write all data")
	c.Flags().StringVar(&t.device, "device", "", "with verbs: RDMA device, as in /sys/class/infiniband (default the first with an IPv4 address); with --connect it chooses verbs and not TCP")
}

func (t *tlsFlags) given() bool { return t.ca != "" || t.cert != "" || t.key != "" }

func (t *tlsFlags) check() error {
	if !t.given() {
		return nil
	}
	for _, f := range []struct{ flag, v string }{{"tls-ca", t.ca}, {"tls-cert", t.cert}, {"tls-key", t.key}} {
		if f.v == "" {
			return fmt.Errorf("--%s: want it with the other --tls flags: a CA, a certificate and its key", f.flag)
		}
	}
	if t.insecure {
		return fmt.Errorf("--insecure: want it or the --tls flags, not both")
	}
	return nil
}

// provider makes the provider "tcp".
func (t *tlsFlags) provider() (rdma.Provider, error) {
	p, err := tcp.New(tcp.Options{Insecure: t.insecure, TLS: t.files()})
	if err != nil {
		return nil, usageError{err}
	}
	return p, nil
}

// client is what a client of any fabric needs.
func (t *tlsFlags) client() cluster.ClientOptions {
	return cluster.ClientOptions{TLS: t.files(), Insecure: t.insecure, Device: t.device, Members: openMembers}
}

// files are the certificates, nil without.
func (t *tlsFlags) files() *tcp.TLS {
	if !t.given() {
		return nil
	}
	return &tcp.TLS{CA: t.ca, Cert: t.cert, Key: t.key}
}

// args are the flags for a child process.
func (t *tlsFlags) args() []string {
	var args []string
	if t.given() {
		args = []string{"--tls-ca", t.ca, "--tls-cert", t.cert, "--tls-key", t.key}
	}
	if t.device != "" {
		args = append(args, "--device", t.device)
	}
	if t.insecure {
		args = append(args, "--insecure")
	}
	return args
}

// processes describes data servers in child processes over fabrics. listen is
// where the first one listens on a network; empty means anywhere on this
// machine.
func processes(fabrics []string, t *tlsFlags, listen string, size cluster.Size) (o cluster.ProcessOptions, err error) {
	o = cluster.ProcessOptions{Size: size, Workload: workloadTPCC}
	if o.Command, err = childCommand(); err != nil {
		return o, err
	}
	if o.Provider, err = t.fabrics(fabrics); err != nil {
		return o, err
	}
	o.Command = append(append(o.Command, "--fabrics", strings.Join(fabrics, ",")), t.args()...)
	switch {
	case len(fabrics) == 1 && fabrics[0] == fabricShm:
	case listen != "":
		o.Addrs, err = consecutive(listen, size.Servers)
	case slices.Contains(fabrics, fabricVerbs):
		var device rdma.Provider
		if device, err = t.verbs(); err == nil {
			o.Addrs, err = cluster.DeviceAddrs(device, size.Servers)
		}
	default:
		o.Addrs, err = cluster.LoopbackAddrs(size.Servers)
	}
	return o, err
}

// verbs makes the provider "verbs".
func (t *tlsFlags) verbs() (rdma.Provider, error) {
	return verbs.New(verbs.Options{Device: t.device})
}

// fabrics makes a provider of the fabrics named.
func (t *tlsFlags) fabrics(names []string) (rdma.Provider, error) {
	if len(names) == 1 {
		switch names[0] {
		case fabricShm:
			return newShm()
		case fabricTCP:
			return t.provider()
		case fabricVerbs:
			return t.verbs()
		}
	}
	return t.several(names)
}

// several makes one provider of several.
func (t *tlsFlags) several(names []string) (*cluster.Fabrics, error) {
	f := &cluster.Fabrics{}
	for _, name := range names {
		p, err := t.fabrics([]string{name})
		if err != nil {
			return nil, err
		}
		switch name {
		case fabricShm:
			f.Shm = p
		case fabricVerbs:
			f.Verbs = p
		case fabricTCP:
			f.TCP = p
		}
	}
	return f, nil
}

// consecutive are n addresses from host:port on.
func consecutive(first string, n int) ([]string, error) {
	host, port, err := net.SplitHostPort(first)
	p, perr := strconv.Atoi(port)
	if err != nil || perr != nil || host == "" || p < 1 || p+n-1 > 65535 {
		return nil, usagef("--listen %q: want host:port for the first of %d data servers, which take consecutive ports up to 65535", first, n)
	}
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = net.JoinHostPort(host, strconv.Itoa(p+i))
	}
	return addrs, nil
}

// clientOf makes a client of the fabric of a cluster found running.
func (w *whereFlags) clientOf(fabric string) (rdma.Provider, error) {
	names := strings.Split(fabric, "+")
	for _, name := range names {
		if !slices.Contains(cluster.FabricNames, name) {
			return nil, fmt.Errorf("the cluster uses fabric %q, want %s", fabric, oneOf(cluster.FabricNames))
		}
	}
	if len(names) == 1 {
		return w.tls.fabrics(names)
	}
	return cluster.NewFabrics(w.tls.client())
}
