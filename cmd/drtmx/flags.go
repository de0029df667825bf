package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drtmx/index/learned"
	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/load"
	"drtmx/rdma/multi"
	"drtmx/tpcc"
)

// badValue matches the flag library's complaint about a value.
var badValue = regexp.MustCompile(`^invalid argument "(.*)" for "(?:-\w, )?--([\w-]+)" flag:`)

// flagError says what a flag wants, which the library does not.
func flagError(c *cobra.Command, err error) error {
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return cli.Usagef("%s: %w (see %s --help)", c.CommandPath(), err, c.CommandPath())
	}
	want := map[string]string{
		"int": "a whole number", "uint64": "a whole number, not negative", "duration": "a duration such as 10s or 1m30s",
		"bool": "true or false", "float64": "a number such as 0.1",
		dirValue("").Type(): "a directory; --connect takes addresses",
	}
	kind := "another value"
	if f := c.Flags().Lookup(m[2]); f != nil && want[f.Value.Type()] != "" {
		kind = want[f.Value.Type()]
	}
	return cli.Usagef("%s: --%s %q: want %s", c.CommandPath(), m[2], m[1], kind)
}

// flagFault names the flag whose value err is about.
func flagFault(flag, value string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s %q: %w", flag, value, err)
}

// checkChoice refuses a value that is none of the choices.
func checkChoice(flag, value string, choices []string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return fmt.Errorf("--%s %q: want %s", flag, value, oneOf(choices))
}

// cacheHelp describes --cache.
const cacheHelp = "how much of the models of ordered indexes clients keep: full, part=BYTES (of translation tables, for each index and partition), models or router; what they do not keep costs a READ more"

// modelsFlag is the family of the models of ordered indexes.
type modelsFlag struct{ name string }

func (m *modelsFlag) add(c *cobra.Command) {
	c.Flags().StringVar(&m.name, "models", "plr", "how data servers fit the models of ordered indexes: plr (piecewise linear with bounded error) or rmi (two-level, as XStore)")
}

func (m *modelsFlag) check() error {
	_, err := learned.ParseFamily(m.name)
	return flagFault("models", m.name, err)
}

// family is the family named, which was checked.
func (m *modelsFlag) family() learned.Family {
	f, _ := learned.ParseFamily(m.name)
	return f
}

// whereFlags say which cluster a command is for.
type whereFlags struct {
	dataDir string
	connect []string
	tls     tlsFlags
}

// dirValue is the value of --data-dir.
type dirValue string

// addDataDir adds the flag --data-dir.
func addDataDir(c *cobra.Command, dir *string, fallback, help string) {
	*dir = fallback
	c.Flags().Var((*dirValue)(dir), "data-dir", help)
}

func (d *dirValue) String() string { return string(*d) }

// Type implements pflag.Value.
func (dirValue) Type() string { return "directory" }

// Set refuses addresses, which look like directories.
func (d *dirValue) Set(s string) error {
	if cluster.IsAddress(s) {
		return errors.New("an address")
	}
	*d = dirValue(s)
	return nil
}

func (w *whereFlags) add(c *cobra.Command) {
	addDataDir(c, &w.dataDir, "", "runtime directory of a cluster, as given to drtmx serve")
	c.Flags().StringSliceVar(&w.connect, "connect", nil, "address of a cluster, instead of --data-dir: drtmx://host:port of one or more of its data servers, drtmx+shm:///dir, drtmx+etcd://host:port/name, or the addresses of all its data servers, sockets or host:port")
	w.tls.add(c)
}

func (w *whereFlags) check() error {
	if w.dataDir != "" && len(w.connect) > 0 {
		return fmt.Errorf("--data-dir and --connect: want one of them")
	}
	if a, err := w.address(); err != nil {
		return fmt.Errorf("--connect: %w", err)
	} else if a != nil {
		return w.tls.check()
	}
	for _, a := range w.connect {
		if a == "" {
			return fmt.Errorf("--connect: an address is empty, want sockets of data servers separated by commas")
		}
		if multi.IsHostPort(a) != multi.IsHostPort(w.connect[0]) {
			return fmt.Errorf("--connect: %q and %q, want sockets or host:port, not both", w.connect[0], a)
		}
	}
	return w.tls.check()
}

// address is where to ask for the cluster, nil if connect lists all servers.
func (w *whereFlags) address() (*cluster.Address, error) {
	if len(w.connect) == 0 || !cluster.IsAddress(w.connect[0]) {
		return nil, nil
	}
	return cluster.ParseAddress(strings.Join(w.connect, ",")) // the flag's own commas
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
	c.Flags().IntVar(&l.items, "items", 0, "items, and stock rows of a warehouse; 0 means TPC-C's 100000 (fewer only for experiments)")
	c.Flags().IntVar(&l.customers, "customers", 0, "customers of a district; 0 means TPC-C's 3000 (fewer only for experiments)")
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
	keyingThink      bool
	timeScale        float64
}

func (p *paceFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.clients, "clients", defaultClients, "concurrent terminals, each with a session, a home warehouse and a district of its own; ten for each warehouse are TPC-C's")
	c.Flags().DurationVar(&p.duration, "duration", 10*time.Second, "measured interval")
	c.Flags().DurationVar(&p.warmup, "warmup", time.Second, "time of load before the measured interval; all statistics are reset at its end")
	c.Flags().BoolVar(&p.keyingThink, "keying-think", false, "terminals wait before and after each transaction as TPC-C requires (keying and think times)")
	c.Flags().Float64Var(&p.timeScale, "time-scale", 1, "multiplies keying and think times; 0.01 makes a terminal a hundred times as fast")
}

// durationMax bounds an interval: longer ones are typing errors.
const durationMax = 7 * 24 * time.Hour

// Bounds of --time-scale.
const (
	timeScaleMin = 1e-6
	timeScaleMax = 1e3
)

func (p *paceFlags) check(given func(string) bool) error {
	switch {
	case p.clients < 1 || p.clients > load.MaxClients:
		return fmt.Errorf("--clients %d: want 1 to %d", p.clients, load.MaxClients)
	case p.duration <= 0 || p.duration > durationMax:
		return fmt.Errorf("--duration %v: want more than 0s and at most %v", p.duration, durationMax)
	case p.warmup < 0 || p.warmup > durationMax:
		return fmt.Errorf("--warmup %v: want 0s to %v", p.warmup, durationMax)
	case !(p.timeScale >= timeScaleMin && p.timeScale <= timeScaleMax): // not a number, too
		return fmt.Errorf("--time-scale %v: want %v to %v", p.timeScale, timeScaleMin, timeScaleMax)
	case given("time-scale") && !p.keyingThink:
		return fmt.Errorf("--time-scale %v: want --keying-think with it", p.timeScale)
	}
	return nil
}
