package command

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/tpcc/bench"
)

func (a *app) reportCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "report",
		Short: "Compare the reports of runs",
		Long:  "Reads the JSON reports that drtmx tpcc run and drtmx tpcc compare write.",
	}
	c.AddCommand(a.diffCommand())
	group(c)
	return c
}

func (a *app) diffCommand() *cobra.Command {
	var b bench.Bounds
	var json string
	c := &cobra.Command{
		Use:   "diff OLD.json NEW.json",
		Short: "Compare two reports, figure by figure",
		Long: `Prints each figure of two reports and the ratio of the new one to the old one,
and the settings that differ. Of reports with several runs it pairs those with
the same mix, design, cache and number of clients, and takes the medians of
repetitions. If a bound that a flag gives is exceeded, the line is marked and
the exit status is 1.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usagef("%s: %d arguments, want two reports, the old one first", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkBounds(c); err != nil {
				return cli.Usage(err)
			}
			return a.diff(args[0], args[1], b, json)
		},
	}
	c.Flags().Float64Var(&b.ThroughputMin, "throughput-min", 0, "least ratio of the rates, such as 0.95; 0 means any")
	c.Flags().Float64Var(&b.LatencyMax, "latency-max", 0, "greatest ratio of p50, p95 and p99 of each transaction, such as 1.2; 0 means any")
	c.Flags().Float64Var(&b.CPUMax, "cpu-max", 0, "greatest ratio of CPU time for each transaction, of clients and of data servers; 0 means any")
	c.Flags().Float64Var(&b.CostMax, "cost-max", 0, "greatest ratio of rounds, READs and RPCs of each transaction; 0 means any")
	c.Flags().StringVar(&json, "json", "", "write the comparison as JSON to this file; - for standard output")
	return c
}

func checkBounds(c *cobra.Command) error {
	var errs []error
	for _, name := range []string{"throughput-min", "latency-max", "cpu-max", "cost-max"} {
		if v, _ := c.Flags().GetFloat64(name); !(v >= 0 && v <= math.MaxFloat32) {
			errs = append(errs, fmt.Errorf("--%s %v: want a ratio such as 1.1, or 0", name, v))
		}
	}
	return errors.Join(errs...)
}

// reportBytesMax bounds a file of reports.
const reportBytesMax = 1 << 28

func readReports(path string) ([]*bench.Report, error) {
	st, err := os.Stat(path)
	if err == nil && st.Size() > reportBytesMax {
		return nil, fmt.Errorf("%s: %d bytes, want a report of at most %d", path, st.Size(), reportBytesMax)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("want a report that can be read: %w", err)
	}
	reports, err := bench.ParseReports(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return reports, nil
}

// diffs is the JSON object of report diff.
type diffs struct {
	Pairs    []*bench.Diff `json:"pairs"`
	Unpaired []string      `json:"unpaired"`
}

func (a *app) diff(before, after string, b bench.Bounds, json string) (err error) {
	from, err := readReports(before)
	if err != nil {
		return cli.Usage(err)
	}
	to, err := readReports(after)
	if err != nil {
		return cli.Usage(err)
	}
	out, err := cli.OpenJSON(json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var d diffs
	d.Pairs, d.Unpaired = bench.DiffReports(from, to, b)
	if len(d.Pairs) == 0 {
		return cli.Usagef("%s and %s: no run of one has the mix, design, cache and clients of a run of the other", before, after)
	}
	w := a.stdout
	if out.ToStdout {
		w = a.stderr
	}
	var exceeded []string
	for _, pair := range d.Pairs {
		printDiff(w, pair)
		for _, c := range pair.Exceeded() {
			exceeded = append(exceeded, fmt.Sprintf("%v: %s × the old (bound %v)", &c, ratioText(c.Ratio), c.Bound))
		}
	}
	for _, name := range d.Unpaired {
		fmt.Fprintln(w, name)
	}
	if err := out.Put(&d); err != nil {
		return err
	}
	if len(exceeded) > 0 {
		return fmt.Errorf("%d bounds exceeded: %s", len(exceeded), strings.Join(exceeded, "; "))
	}
	return nil
}

func printDiff(w io.Writer, d *bench.Diff) {
	fmt.Fprintf(w, "\n%s\n", d.New)
	for _, s := range d.Settings {
		fmt.Fprintf(w, "differs      %s\n", s)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(w, "note         %s\n", n)
	}
	fmt.Fprintln(w)
	rows := [][]string{{"figure", "old", "new", "new ÷ old", ""}}
	for i := range d.Changes {
		c := &d.Changes[i]
		mark := ""
		if c.Exceeded {
			mark = fmt.Sprintf("EXCEEDS %v", c.Bound)
		}
		rows = append(rows, []string{c.String(), cli.Number(c.Old), cli.Number(c.New), ratioText(c.Ratio), mark})
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
}

// ratioText prints a ratio with three decimals; what was 0 has none.
func ratioText(v float64) string {
	if v > math.MaxFloat32 {
		return "from 0"
	}
	return fmt.Sprintf("%.3f", v)
}
