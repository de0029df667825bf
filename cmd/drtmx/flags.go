package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
	"drtmx/internal/driver"
	"drtmx/tpcc"
	"drtmx/txn"
)

// badValue matches the flag library's complaint about a value.
var badValue = regexp.MustCompile(`^invalid argument "(.*)" for "(?:-\w, )?--([\w-]+)" flag:`)

// flagError says what a flag wants, which the library does not.
func flagError(c *cobra.Command, err error) error {
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return usagef("%s: %w (see %s --help)", c.CommandPath(), err, c.CommandPath())
	}
	want := map[string]string{
		"int": "a whole number", "uint64": "a whole number, not negative", "duration": "a duration such as 10s or 1m30s",
		"bool": "true or false",
	}
	kind := "another value"
	if f := c.Flags().Lookup(m[2]); f != nil && want[f.Value.Type()] != "" {
		kind = want[f.Value.Type()]
	}
	return usagef("%s: --%s %q: want %s", c.CommandPath(), m[2], m[1], kind)
}

// Transaction types of the mix, by the names of the command line, and of
// reports.
var (
	mixNames  = []string{"new-order", "payment", "order-status", "delivery", "stock-level"}
	typeNames = []string{"NEW_ORDER", "PAYMENT", "ORDER_STATUS", "DELIVERY", "STOCK_LEVEL"}
	available = []string{"new-order", "order-status"}
)

// mix is the share of each transaction type.
type mix struct {
	names   []string // command line
	weights []int
}

const maxWeight = 1_000_000

func parseMix(s string) (*mix, error) {
	bad := func(format string, args ...any) (*mix, error) {
		return nil, fmt.Errorf("--mix %q: %s", s, fmt.Sprintf(format, args...))
	}
	m, total := &mix{}, 0
	for part := range strings.SplitSeq(s, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return bad("%q: want name=share, as in new-order=10,order-status=90", part)
		}
		if slices.Contains(mixNames, name) && !slices.Contains(available, name) {
			return bad("%s is not there yet, want %s", name, oneOf(available))
		}
		if !slices.Contains(available, name) {
			return bad("unknown transaction %q, want %s", name, oneOf(available))
		}
		if slices.Contains(m.names, name) {
			return bad("%s is named twice", name)
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxWeight {
			return bad("share %q, want a whole number from 0 to %d", text, maxWeight)
		}
		total += n
		if n > 0 {
			m.names, m.weights = append(m.names, name), append(m.weights, n)
		}
	}
	if total == 0 {
		return bad("all shares are 0")
	}
	return m, nil
}

// types are the names of the report.
func (m *mix) types() []string {
	out := make([]string, len(m.names))
	for i, n := range m.names {
		out[i] = typeNames[slices.Index(mixNames, n)]
	}
	return out
}

// pick maps a number below total to a type.
func (m *mix) pick(n int) int {
	for i, w := range m.weights {
		if n < w {
			return i
		}
		n -= w
	}
	return len(m.weights) - 1
}

func (m *mix) total() (n int) {
	for _, w := range m.weights {
		n += w
	}
	return n
}

func (m *mix) String() string {
	var parts []string
	for i, n := range m.names {
		parts = append(parts, fmt.Sprintf("%s=%d", n, m.weights[i]))
	}
	return strings.Join(parts, ",")
}

// design says how reads travel.
type design struct {
	name        string
	reads       txn.ReadPath
	orderStatus tpcc.Mode
}

var designs = []design{
	{"drtmx", txn.OneSided, tpcc.Client},
	{"drtmh", txn.OrderedByRPC, tpcc.Client},
	{"rpc", txn.OrderedByRPC, tpcc.Procedure},
}

func findDesign(name string) (*design, error) {
	var names []string
	for i := range designs {
		if designs[i].name == name {
			return &designs[i], nil
		}
		names = append(names, designs[i].name)
	}
	return nil, fmt.Errorf("--design %q: want %s", name, oneOf(names))
}

// Fabrics of the command line.
const (
	fabricShm    = "shm"
	fabricInproc = "inproc"
)

var fabrics = []string{fabricShm, fabricInproc}

func checkFabric(name string) error {
	switch {
	case slices.Contains(fabrics, name):
		return nil
	case name == "tcp" || name == "verbs":
		return fmt.Errorf("--fabric %q is not there yet, want %s", name, oneOf(fabrics))
	}
	return fmt.Errorf("--fabric %q: want %s", name, oneOf(fabrics))
}

// whereFlags say which cluster a command is for.
type whereFlags struct {
	dataDir string
	connect []string
}

func (w *whereFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&w.dataDir, "data-dir", "", "runtime directory of a cluster, as given to drtmx serve")
	c.Flags().StringSliceVar(&w.connect, "connect", nil, "addresses of data servers, instead of --data-dir")
}

func (w *whereFlags) check() error {
	if w.dataDir != "" && len(w.connect) > 0 {
		return fmt.Errorf("--data-dir and --connect: want one of them")
	}
	for _, a := range w.connect {
		if a == "" {
			return fmt.Errorf("--connect: an address is empty, want sockets of data servers separated by commas")
		}
	}
	return nil
}

func (w *whereFlags) given() bool { return w.dataDir != "" || len(w.connect) > 0 }

// sizeFlags say how large a cluster to start.
type sizeFlags struct{ servers, partitions int }

func (s *sizeFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&s.servers, "servers", 4, "data servers")
	c.Flags().IntVar(&s.partitions, "partitions", 0, "partitions of the data; 0 means one for each server")
}

func (s *sizeFlags) check() error {
	if s.servers < 1 || s.servers > cluster.MaxServers {
		return fmt.Errorf("--servers %d: want 1 to %d", s.servers, cluster.MaxServers)
	}
	if s.partitions != 0 && (s.partitions < s.servers || s.partitions > cluster.MaxPartitions) {
		return fmt.Errorf("--partitions %d: want 0, or %d (the servers) to %d", s.partitions, s.servers, cluster.MaxPartitions)
	}
	return nil
}

func (s *sizeFlags) size() cluster.Size {
	return cluster.Size{Servers: s.servers, Partitions: s.partitions}
}

// loadFlags say what to load.
type loadFlags struct {
	warehouses       int
	items, customers int
	seed             uint64
}

func (l *loadFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&l.warehouses, "warehouses", 4, "warehouses to load")
	c.Flags().IntVar(&l.items, "items", 0, "items, and stock rows of a warehouse; 0 means TPC-C's 100000 (fewer only for trying out)")
	c.Flags().IntVar(&l.customers, "customers", 0, "customers of a district; 0 means TPC-C's 3000 (fewer only for trying out)")
	c.Flags().Uint64Var(&l.seed, "seed", 1, "seed of all data and inputs")
}

func (l *loadFlags) check() error {
	switch {
	case l.warehouses < 1 || l.warehouses > tpcc.MaxWarehouses:
		return fmt.Errorf("--warehouses %d: want 1 to %d", l.warehouses, tpcc.MaxWarehouses)
	case l.items != 0 && (l.items < tpcc.MaxLines || l.items >= tpcc.MaxItems):
		return fmt.Errorf("--items %d: want 0, or %d to %d", l.items, tpcc.MaxLines, tpcc.MaxItems-1)
	case l.customers < 0 || l.customers > tpcc.MaxCustomers:
		return fmt.Errorf("--customers %d: want 0 to %d", l.customers, tpcc.MaxCustomers)
	}
	return nil
}

func (l *loadFlags) config() tpcc.LoadConfig {
	return tpcc.LoadConfig{
		Warehouses: int64(l.warehouses), Seed: l.seed,
		Scale: tpcc.Scale{Items: int64(l.items), Customers: int64(l.customers)},
	}
}

// paceFlags say how long and how hard to run.
type paceFlags struct {
	clients          int
	duration, warmup time.Duration
}

func (p *paceFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.clients, "clients", defaultClients, "concurrent clients, each with a session of its own")
	c.Flags().DurationVar(&p.duration, "duration", 10*time.Second, "measured interval")
	c.Flags().DurationVar(&p.warmup, "warmup", time.Second, "runs before the measured interval and does not count")
}

// maxDuration bounds an interval: longer ones are typing errors.
const maxDuration = 7 * 24 * time.Hour

func (p *paceFlags) check() error {
	switch {
	case p.clients < 1 || p.clients > driver.MaxClients:
		return fmt.Errorf("--clients %d: want 1 to %d", p.clients, driver.MaxClients)
	case p.duration <= 0 || p.duration > maxDuration:
		return fmt.Errorf("--duration %v: want more than 0s and at most %v", p.duration, maxDuration)
	case p.warmup < 0 || p.warmup > maxDuration:
		return fmt.Errorf("--warmup %v: want 0s to %v", p.warmup, maxDuration)
	}
	return nil
}
