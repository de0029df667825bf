package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drtmx/internal/cli"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
)

// The flags of go-tpc, so that its users and their scripts need not learn
// others: those with a meaning here are aliases, the others are refused, or
// ignored with a line.

// goTPC are aliases by their names in go-tpc.
var goTPC = map[string]string{
	"threads": "clients", "time": "duration", "parts": "partitions", "wait": "keying-think",
	"metrics-addr": "metrics", "interval": "series-interval",
}

// notGoTPC is a flag of go-tpc that has no meaning here.
type notGoTPC struct {
	name, short string
	toggle      bool // has no value
	ignore      bool // else refused
	why         string
}

const (
	noDatabase = "drtmx is the database itself; --runtime-dir or --connect names a running cluster"
	noFiles    = "drtmx tpcc prepare loads a cluster and writes no files"
)

// ofAll are those of all its commands, ofPrepare of prepare, ofRun of run.
var (
	ofAll = []notGoTPC{
		{name: "db", short: "D", why: noDatabase},
		{name: "host", short: "H", why: noDatabase},
		{name: "port", short: "P", why: noDatabase},
		{name: "statusPort", short: "S", why: noDatabase},
		{name: "user", short: "U", why: noDatabase},
		{name: "password", short: "p", why: noDatabase},
		{name: "driver", short: "d", why: noDatabase},
		{name: "targets", why: noDatabase},
		{name: "conn-params", why: noDatabase},
		{name: "dropdata", toggle: true, why: "drtmx tpcc cleanup empties a cluster"},
		{name: "acThreads", short: "t", why: "there is no CH-benCHmark"},
		{name: "max-procs", ignore: true, why: "GOMAXPROCS in the environment is the number of processors"},
		{name: "isolation", ignore: true, why: "transactions are strictly serializable"},
		{name: "ignore-error", toggle: true, ignore: true, why: "transactions that meet conflicts in every attempt are counted; any other error ends the run"},
		{name: "silence", toggle: true, ignore: true, why: "errors of transactions are counted, not printed"},
		{name: "partition-type", ignore: true, why: "warehouses go to partitions in turn"},
		{name: "check-all", toggle: true, ignore: true, why: "all conditions are always checked"},
	}
	ofPrepare = []notGoTPC{
		{name: "use-fk", toggle: true, why: "there are no foreign keys"},
		{name: "output-type", why: noFiles},
		{name: "output-dir", why: noFiles},
		{name: "tables", why: noFiles},
		{name: "no-check", toggle: true, ignore: true, why: "prepare does not check; drtmx tpcc check does"},
		{name: "use-clustered-index", toggle: true, ignore: true, why: "rows are in the primary index, or beside it"},
		{name: "retry-count", ignore: true, why: "loading does not repeat what failed"},
		{name: "retry-interval", ignore: true, why: "loading does not repeat what failed"},
	}
	ofRun = []notGoTPC{
		{name: "max-measure-latency", ignore: true, why: "latencies up to 100 s are measured"},
		{name: "conn-refresh-interval", ignore: true, why: "connections stay open"},
	}
)

// givenFlag is the value of a flag without a meaning. Set remembers it.
type givenFlag struct{ value *string }

func (g givenFlag) String() string     { return "" }
func (g givenFlag) Type() string       { return "string" }
func (g givenFlag) Set(s string) error { *g.value = strings.TrimSpace(" " + s); return nil }

// addGoTPC adds the flags of go-tpc to a command that has its own.
func (a *app) addGoTPC(c *cobra.Command, others ...notGoTPC) {
	c.Annotations = map[string]string{} // of the aliases that were given, by the name here
	c.Flags().SetNormalizeFunc(func(f *pflag.FlagSet, name string) pflag.NormalizedName {
		own, ok := goTPC[name]
		if !ok {
			return pflag.NormalizedName(name)
		}
		c.Annotations[own] = name
		return pflag.NormalizedName(own)
	})
	values := map[string]*string{}
	for _, o := range slices.Concat(ofAll, others) {
		values[o.name] = new(string)
		f := c.Flags().VarPF(givenFlag{values[o.name]}, o.name, o.short, o.why)
		f.Hidden = true
		if o.toggle {
			f.NoOptDefVal = "true"
		}
	}
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		var errs []error
		for _, o := range slices.Concat(ofAll, others) {
			switch given := strings.TrimSpace("--" + o.name + " " + *values[o.name]); {
			case !c.Flags().Changed(o.name):
			case o.ignore:
				a.Say("%s: ignored: %s", given, o.why)
			default:
				errs = append(errs, fmt.Errorf("%s: %s", given, o.why))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return cli.Usage(err)
		}
		return nil
	}
}

// asGiven makes a message name the flags as the command line does.
func asGiven(c *cobra.Command, err error) error {
	text := err.Error()
	for _, own := range slices.Sorted(maps.Keys(c.Annotations)) {
		for _, end := range []string{" ", ":"} {
			text = strings.ReplaceAll(text, "--"+own+end, "--"+c.Annotations[own]+end)
		}
	}
	if text == err.Error() {
		return err
	}
	return blamed{text, err}
}

// weightFlag sets --mix from go-tpc's list of weights.
type weightFlag struct{ mix *string }

const kindWeight = "weight"

func (w weightFlag) String() string { return "" }

// Type is kindWeight.
func (w weightFlag) Type() string { return kindWeight }

// Set takes five shares.
func (w weightFlag) Set(s string) error {
	shares := strings.Split(s, ",")
	if len(shares) != len(tpcc.Types) {
		return fmt.Errorf("%d numbers", len(shares))
	}
	var parts []string
	for i, name := range bench.Names(tpcc.Types[:]) {
		parts = append(parts, strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+strings.TrimSpace(shares[i]))
	}
	mix := strings.Join(parts, ",")
	if _, err := tpcc.ParseMix(mix); err != nil {
		return err
	}
	*w.mix = mix
	return nil
}
