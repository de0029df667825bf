package command

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drtmx/index/learned"
	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/load"
	"drtmx/internal/member"
	"drtmx/internal/replica"
	"drtmx/rdma/multi"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
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
		"bool": "true or false", "float64": "a number such as 0.1", "int64": "a whole number",
		kindWeight:          "five shares that add up to 100: of NEW-ORDER, PAYMENT, ORDER-STATUS, DELIVERY and STOCK-LEVEL",
		"intSlice":          "whole numbers, separated by commas",
		dirValue("").Type(): "a directory; --connect takes addresses",
	}
	kind := "another value"
	if f := c.Flags().Lookup(m[2]); f != nil && want[f.Value.Type()] != "" {
		kind = want[f.Value.Type()]
	}
	return cli.Usage(asGiven(c, fmt.Errorf("%s: --%s %q: want %s", c.CommandPath(), m[2], m[1], kind)))
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
const cacheHelp = "how much of the models of ordered indexes clients keep: full, decoded (the same, with tables that are larger and quicker to use while they fit the caches of the processor), part=BYTES (of translation tables, for each index and partition), models or router; what they do not keep costs a READ more. tree or tree=BYTES (for each index and partition) keeps inner nodes of the data servers' trees instead"

// modelsFlag is the family of the models of ordered indexes.
type modelsFlag struct {
	name  string
	inner bool // publish inner nodes
}

func (m *modelsFlag) add(c *cobra.Command) {
	c.Flags().StringVar(&m.name, "models", "plr", "how data servers fit the models of ordered indexes: plr (piecewise linear with bounded error) or rmi (two-level, as XStore)")
}

func (m *modelsFlag) check() error {
	_, err := learned.ParseFamily(m.name)
	return flagFault("models", m.name, err)
}

// addInner adds the flag for data servers whose clients may cache inner nodes.
func (m *modelsFlag) addInner(c *cobra.Command) {
	c.Flags().BoolVar(&m.inner, "publish-inner", false, "publish the inner nodes of ordered indexes with numbers as keys too, for clients with --cache tree")
}

// family is the family named, which was checked.
func (m *modelsFlag) family() learned.Family {
	f, _ := learned.ParseFamily(m.name)
	return f
}

// whereFlags say which cluster a command is for.
type whereFlags struct {
	runtimeDir string
	connect    []string
	tls        tlsFlags
}

// dirValue is the value of --runtime-dir.
type dirValue string

// addRuntimeDir adds the flag --runtime-dir.
func addRuntimeDir(c *cobra.Command, dir *string, fallback, help string) {
	*dir = fallback
	c.Flags().Var((*dirValue)(dir), "runtime-dir", help)
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
	addRuntimeDir(c, &w.runtimeDir, "", "runtime directory of a cluster, as given to drtmx serve")
	c.Flags().StringSliceVar(&w.connect, "connect", nil, "address of a cluster, instead of --runtime-dir: drtmx://host:port of one or more of its data servers, drtmx+shm:///dir, drtmx+etcd://host:port/name, or the addresses of all its data servers, sockets or host:port")
	w.tls.add(c)
}

func (w *whereFlags) check() error {
	if w.runtimeDir != "" && len(w.connect) > 0 {
		return fmt.Errorf("--runtime-dir and --connect: want one of them")
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

func (w *whereFlags) given() bool { return w.runtimeDir != "" || len(w.connect) > 0 }

// sizeFlags say how large a cluster to start.
type sizeFlags struct {
	servers, partitions int
	memory              bytesFlag // of each server
	retain              time.Duration
	retainBytes         bytesFlag
	checkpointBytes     bytesFlag
	replicas            int
	minInSync           int
	zones               []string
	writerLease         time.Duration
}

func (s *sizeFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&s.servers, "servers", 4, "data servers")
	c.Flags().IntVar(&s.partitions, "partitions", 0, "partitions of the data; 0 means one for each server")
	c.Flags().Var(&s.memory, "memory", "bound of the memory of each data server's partitions together, such as 4GiB; 0 means 16 GiB for each partition")
	c.Flags().DurationVar(&s.retain, "retain", cluster.DefaultRetain, "how long data servers keep versions of overwritten rows, for snapshots; 0 means none")
	c.Flags().Var(&s.retainBytes, "retain-bytes", "bound of the memory of these versions in each partition, such as 256MiB; 0 means an eighth of the partition's memory")
	c.Flags().Var(&s.checkpointBytes, "checkpoint-bytes", "growth of a data server's log after which it makes a checkpoint and cuts the log, with --data-dir, such as 64MiB; 0 means 256 MiB")
	c.Flags().IntVar(&s.minInSync, "min-in-sync", 1, "with --replicas: copies that must be in sync, the data server's own included, so that it takes writes")
	c.Flags().StringSliceVar(&s.zones, "zones", nil, "with --replicas: what may fail together, such as a rack, for each host in order; copies are kept in as many zones as there are")
	c.Flags().DurationVar(&s.writerLease, "writer-lease", cluster.DefaultWriterLease, "how long a client that writes a table of the engine rolex without the data server may hold rows that others wait for, before its connection is ended")
	c.Flags().IntVar(&s.replicas, "replicas", 1, "copies of each data server's data, its own included, with --data-dir: commits wait for all that are in sync, and a copy takes the place of a directory that is lost, with --etcd while the cluster runs")
}

func (s *sizeFlags) check() error {
	if s.servers < 1 || s.servers > cluster.MaxServers {
		return fmt.Errorf("--servers %d: want 1 to %d", s.servers, cluster.MaxServers)
	}
	if s.partitions != 0 && (s.partitions < s.servers || s.partitions > cluster.MaxPartitions) {
		return fmt.Errorf("--partitions %d: want 0, or %d (the servers) to %d", s.partitions, s.servers, cluster.MaxPartitions)
	}
	if least := bytesFlag(s.hosted() * cluster.MinMemoryBytes); s.memory != 0 && s.memory < least {
		return fmt.Errorf("--memory %v: want 0, or at least %v for the %d partitions of a data server", &s.memory, &least, s.hosted())
	}
	if most := min(s.servers, replica.MaxMembers); s.replicas < 0 || s.replicas > most {
		return fmt.Errorf("--replicas %d: want 1 to %d with %d data servers", s.replicas, most, s.servers)
	}
	if s.minInSync < 1 || s.minInSync > max(s.replicas, 1) {
		return fmt.Errorf("--min-in-sync %d: want 1 to %d, the number of --replicas", s.minInSync, max(s.replicas, 1))
	}
	if len(s.zones) != 0 && len(s.zones) != s.servers {
		return fmt.Errorf("--zones %s: want %d, one for each host", strings.Join(s.zones, ","), s.servers)
	}
	if len(s.zones) != 0 && s.replicas < 2 {
		return fmt.Errorf("--zones %s: want --replicas 2 or more with it", strings.Join(s.zones, ","))
	}
	for _, zone := range s.zones {
		if err := member.CheckZone(zone); err != nil {
			return fmt.Errorf("--zones %s: %w", strings.Join(s.zones, ","), err)
		}
	}
	if s.retain < 0 {
		return fmt.Errorf("--retain %v: want 0 or more", s.retain)
	}
	if s.writerLease <= 0 {
		return fmt.Errorf("--writer-lease %v: want more than 0", s.writerLease)
	}
	return nil
}

// hosted is the largest number of partitions at one server.
func (s *sizeFlags) hosted() int { return (max(s.partitions, s.servers) + s.servers - 1) / s.servers }

func (s *sizeFlags) size() cluster.Size {
	size := cluster.Size{Servers: s.servers, Partitions: s.partitions, PartitionBytes: uint64(s.memory) / uint64(s.hosted()), Retain: s.retain, RetainBytes: uint64(s.retainBytes), CheckpointBytes: uint64(s.checkpointBytes), Replicas: s.replicas, MinInSync: s.minInSync, Zones: s.zones, WriterLease: s.writerLease}
	if s.retain == 0 {
		size.Retain = cluster.RetainNothing
	}
	return size
}

// args are these flags but the first two.
func (s *sizeFlags) args() []string {
	args := []string{
		"--memory", s.memory.String(), "--retain", s.retain.String(), "--retain-bytes", s.retainBytes.String(),
		"--checkpoint-bytes", s.checkpointBytes.String(), "--replicas", strconv.Itoa(s.replicas), "--min-in-sync", strconv.Itoa(s.minInSync),
		"--writer-lease", s.writerLease.String(),
	}
	if len(s.zones) > 0 {
		args = append(args, "--zones", strings.Join(s.zones, ","))
	}
	return args
}

// loadFlags say what to load.
type loadFlags struct {
	warehouses       int
	items, customers int
	seed             uint64
}

func (l *loadFlags) add(c *cobra.Command) {
	l.addSize(c)
	c.Flags().Uint64Var(&l.seed, "seed", 1, "seed of all data and inputs")
}

// addSize adds the flags of how much to load.
func (l *loadFlags) addSize(c *cobra.Command) {
	c.Flags().IntVar(&l.warehouses, "warehouses", 4, "warehouses to load")
	c.Flags().IntVar(&l.items, "items", 0, "items, and stock rows of a warehouse; 0 means TPC-C's 100000 (fewer only for experiments)")
	c.Flags().IntVar(&l.customers, "customers", 0, "customers of a district; 0 means TPC-C's 3000 (fewer only for experiments)")
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
	clients          []int // of one run after another
	count            int64 // transactions of the measured interval; 0: as many as end in duration
	duration, warmup time.Duration
	keyingThink      bool
	timeScale        float64
	rate             float64
	arrivals         string
}

func (p *paceFlags) add(c *cobra.Command) {
	c.Flags().IntSliceVarP(&p.clients, "clients", "T", []int{defaultClients}, "concurrent terminals, each with a session, a home warehouse and a district of its own; ten for each warehouse are TPC-C's. tpcc run takes several numbers, such as 1,4,16, and runs once with each")
	c.Flags().DurationVar(&p.duration, "duration", 10*time.Second, "measured interval")
	c.Flags().Int64Var(&p.count, "count", 0, "end when so many transactions have ended after the warm-up, shared evenly by the terminals; with --duration at the latest after that")
	c.Flags().DurationVar(&p.warmup, "warmup", time.Second, "time of load before the measured interval; all statistics are reset at its end")
	c.Flags().BoolVar(&p.keyingThink, "keying-think", false, "terminals wait before and after each transaction as TPC-C requires (keying and think times)")
	c.Flags().Float64Var(&p.rate, "rate", 0, "offer so many transactions a second, whether or not those before have ended, and count latency since each was due; 0 means that each terminal runs one after the other")
	c.Flags().StringVar(&p.arrivals, "arrivals", "poisson", "when the transactions of --rate are due: poisson (as from many independent users) or even (at equal distances)")
	c.Flags().Float64Var(&p.timeScale, "time-scale", 1, "multiplies keying and think times; 0.01 makes a terminal a hundred times as fast")
}

// durationMax bounds an interval: longer ones are typing errors.
const durationMax = 7 * 24 * time.Hour

// Bounds of --time-scale.
const (
	timeScaleMin = 1e-6
	timeScaleMax = 1e3
)

// Bounds of --rate.
const (
	rateMin = 1e-3
	rateMax = 1e8
)

// rungsMax bounds the numbers of --clients.
const rungsMax = 64

// outside is the index of the first value that is not within bounds, or -1.
func outside(values []int, lo, hi int) int {
	return slices.IndexFunc(values, func(v int) bool { return v < lo || v > hi })
}

// limit is the measured interval, 0 if only --count ends it.
func (p *paceFlags) limit(given func(string) bool) time.Duration {
	if p.count > 0 && !given("duration") {
		return 0
	}
	return p.duration
}

// each is how long one run takes, at most if it ends with --count.
func (p *paceFlags) each() time.Duration { return p.warmup + p.duration }

// takes says how long so many runs take.
func (p *paceFlags) takes(runs int) string {
	if p.count > 0 {
		return fmt.Sprintf("of %d transactions take until these have ended", p.count)
	}
	return fmt.Sprintf("of %v take %v", p.each(), time.Duration(runs)*p.each())
}

// left ends a line with how long the remaining runs take.
func (p *paceFlags) left(runs int) string {
	switch {
	case runs == 0:
		return ""
	case p.count > 0:
		return fmt.Sprintf(", %d more to run", runs)
	}
	return fmt.Sprintf(", %v left", time.Duration(runs)*p.each())
}

func (p *paceFlags) check(given func(string) bool) error {
	switch {
	case len(p.clients) == 0 || len(p.clients) > rungsMax:
		return fmt.Errorf("--clients: %d numbers, want 1 to %d", len(p.clients), rungsMax)
	case outside(p.clients, 1, load.MaxClients) >= 0:
		return fmt.Errorf("--clients %d: want 1 to %d", p.clients[outside(p.clients, 1, load.MaxClients)], load.MaxClients)
	case len(slices.Compact(slices.Sorted(slices.Values(p.clients)))) < len(p.clients):
		return fmt.Errorf("--clients %s: want each number once", listed(p.clients))
	case given("count") && p.count < 1:
		return fmt.Errorf("--count %d: want 1 or more", p.count)
	case given("count") && p.count < int64(slices.Max(p.clients)):
		return fmt.Errorf("--count %d: want at least one transaction for each of the %d clients", p.count, slices.Max(p.clients))
	case p.duration <= 0 || p.duration > durationMax:
		return fmt.Errorf("--duration %v: want more than 0s and at most %v", p.duration, durationMax)
	case p.warmup < 0 || p.warmup > durationMax:
		return fmt.Errorf("--warmup %v: want 0s to %v", p.warmup, durationMax)
	case !(p.timeScale >= timeScaleMin && p.timeScale <= timeScaleMax): // not a number, too
		return fmt.Errorf("--time-scale %v: want %v to %v", p.timeScale, timeScaleMin, timeScaleMax)
	case given("time-scale") && !p.keyingThink:
		return fmt.Errorf("--time-scale %v: want --keying-think with it", p.timeScale)
	case given("rate") && !(p.rate >= rateMin && p.rate <= rateMax):
		return fmt.Errorf("--rate %v: want %v to %v transactions a second", p.rate, rateMin, rateMax)
	case given("rate") && p.keyingThink:
		return fmt.Errorf("--rate %v and --keying-think: want one of them, both say when transactions begin", p.rate)
	case given("arrivals") && !given("rate"):
		return fmt.Errorf("--arrivals %s: want --rate with it", p.arrivals)
	}
	_, err := bench.ParseArrivals(p.arrivals)
	return flagFault("arrivals", p.arrivals, err)
}
