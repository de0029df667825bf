package main

import (
	"crypto/rand"
	"errors"
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
	o := tcp.Options{Insecure: t.insecure}
	if t.given() {
		o.TLS = &tcp.TLS{CA: t.ca, Cert: t.cert, Key: t.key}
	}
	return tcp.New(o)
}

// args are the flags for a child process.
func (t *tlsFlags) args() []string {
	args := []string{"--fabric", fabricTCP}
	if t.given() {
		args = append(args, "--tls-ca", t.ca, "--tls-cert", t.cert, "--tls-key", t.key)
	}
	if t.insecure {
		args = append(args, "--insecure")
	}
	return args
}

// processes describes data servers in child processes over a fabric. listen is
// where the first one listens; empty means anywhere on this machine.
func processes(fabric string, t *tlsFlags, listen string, size cluster.Size) (o cluster.ProcessOptions, err error) {
	o = cluster.ProcessOptions{Size: size, Workload: workloadTPCC}
	if o.Command, err = childCommand(); err != nil {
		return o, err
	}
	switch fabric {
	case fabricTCP:
	case fabricVerbs:
		err = t.verbsProcesses(&o, listen)
		return o, err
	default:
		o.Provider, err = newShm()
		return o, err
	}
	if o.Provider, err = t.provider(); err != nil {
		return o, usageError{err}
	}
	o.Command = append(o.Command, t.args()...)
	if listen == "" {
		o.Addrs, err = cluster.LoopbackAddrs(size.Servers)
	} else {
		o.Addrs, err = consecutive(listen, size.Servers)
	}
	return o, err
}

// verbs makes the provider "verbs".
func (t *tlsFlags) verbs() (rdma.Provider, error) {
	return verbs.New(verbs.Options{Device: t.device})
}

// verbsProcesses describes data servers over RDMA.
func (t *tlsFlags) verbsProcesses(o *cluster.ProcessOptions, listen string) (err error) {
	if o.Provider, err = t.verbs(); err != nil {
		return err
	}
	o.Command = append(o.Command, "--fabric", fabricVerbs, "--device", t.device)
	if listen != "" {
		o.Addrs, err = consecutive(listen, o.Servers)
		return err
	}
	o.Addrs, err = freeAddrs(o.Provider, o.Servers)
	return err
}

// freeAddrs are n addresses of an RDMA device at which nobody listens now. As
// with TCP the ports are below those of outgoing connections.
func freeAddrs(p rdma.Provider, n int) ([]string, error) {
	const first, count, tries = 16 << 10, 16 << 10, 100
	var addrs []string
	for try := 0; len(addrs) < n; try++ {
		var b [2]byte
		_, _ = rand.Read(b[:]) // never fails
		e, err := p.Listen(fmt.Sprintf(":%d", first+(int(b[0])<<8|int(b[1]))%count), rdma.ListenOptions{})
		if err != nil {
			if errors.Is(err, rdma.ErrAddress) && try < tries+n {
				continue
			}
			return nil, err
		}
		addr := e.Addr()
		if err := e.Close(); err != nil {
			return nil, err
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
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

// isHostPort tells an address of TCP from the path of a socket.
func isHostPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	_, perr := strconv.Atoi(port)
	return err == nil && perr == nil && !strings.ContainsAny(addr, "/@")
}

// clientOf makes a client of the fabric of a cluster found running.
func (w *whereFlags) clientOf(fabric string) (rdma.Provider, error) {
	switch fabric {
	case fabricShm:
		return newShm()
	case fabricTCP:
		return w.tls.provider()
	case fabricVerbs:
		return w.tls.verbs()
	}
	return nil, fmt.Errorf("the cluster uses fabric %q, want %s, %s or %s", fabric, fabricShm, fabricTCP, fabricVerbs)
}
