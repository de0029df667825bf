package command

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/rdma/tcp"
)

// Fabrics of the command line.
const (
	fabricShm    = "shm"
	fabricInproc = "inproc"
	fabricTCP    = "tcp"
	fabricVerbs  = "verbs"
)

var fabrics = []string{fabricShm, fabricInproc, fabricTCP, fabricVerbs}

// newProvider is cluster.NewProvider, or a test's.
var newProvider = cluster.NewProvider

// tlsFlags say how processes that talk over TCP know each other.
type tlsFlags struct {
	ca, cert, key string
	insecure      bool
	device        string // of RDMA
	secret        string // a file; of data servers
}

func (t *tlsFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&t.ca, "tls-ca", "", "with TCP: PEM file of the authorities that sign servers and clients; drtmx certs makes a set for experiments")
	c.Flags().StringVar(&t.cert, "tls-cert", "", "with TCP: PEM file of this process's certificate")
	c.Flags().StringVar(&t.key, "tls-key", "", "with TCP: PEM file of its key")
	c.Flags().BoolVar(&t.insecure, "insecure", false, "with TCP: allow plain text beyond this machine; any process that reaches a port can read and write all data")
	c.Flags().StringVar(&t.device, "device", "", "with verbs: RDMA device, as in /sys/class/infiniband (default: the first with an IPv4 address); with --connect, verbs is used instead of TCP")
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

// options are what the fabrics between processes need.
func (t *tlsFlags) options() multi.Options {
	o := multi.Options{Insecure: t.insecure, Device: t.device}
	if t.given() {
		o.TLS = &tcp.TLS{CA: t.ca, Cert: t.cert, Key: t.key}
	}
	return o
}

// provider makes a provider of the fabrics named.
func (t *tlsFlags) provider(names []string) (rdma.Provider, error) {
	p, err := newProvider(t.options(), names...)
	return p, asUsage(err, tcp.ErrCertificateFile)
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
func processes(fabrics []string, t *tlsFlags, listen string, size cluster.Size) (o cluster.StartOptions, err error) {
	o = cluster.StartOptions{Size: size, Workload: cluster.Workload{Name: workloadTPCC}}
	if o.Command, err = childCommand(); err != nil {
		return o, err
	}
	o.Command = append(append(o.Command, "--fabrics", strings.Join(fabrics, ",")), t.args()...)
	if o.Provider, err = t.provider(fabrics); err != nil {
		return o, err
	}
	switch {
	case len(fabrics) == 1 && fabrics[0] == fabricShm:
	case listen != "":
		o.Addrs, err = consecutive(listen, size.Servers)
	case slices.Contains(fabrics, fabricVerbs):
		var device rdma.Provider
		if device, err = t.provider([]string{fabricVerbs}); err == nil {
			o.Addrs, err = cluster.DeviceAddrs(device, size.Servers)
		}
	default:
		o.Addrs, err = cluster.LoopbackAddrs(size.Servers)
	}
	return o, err
}

// consecutive are n addresses from host:port on.
func consecutive(first string, n int) ([]string, error) {
	host, port, err := net.SplitHostPort(first)
	p, perr := strconv.Atoi(port)
	if err != nil || perr != nil || host == "" || p < 1 || p+n-1 > 65535 {
		return nil, cli.Usagef("--listen %q: want host:port for the first of %d data servers, which take consecutive ports up to 65535", first, n)
	}
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = net.JoinHostPort(host, strconv.Itoa(p+i))
	}
	return addrs, nil
}
