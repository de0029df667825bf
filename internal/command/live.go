package command

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/hist"
	"drtmx/internal/load"
)

// Styles of --output.
const (
	outputTable = "table"
	outputPlain = "plain"
	outputJSON  = "json"
)

var styles = []string{outputTable, outputPlain, outputJSON}

// outputFlags say what a run prints, and what it writes while it runs.
type outputFlags struct {
	style  string
	series string
	every  time.Duration
	asked  bool // every was given
	hdr    string
	html   htmlFlag
}

const (
	defaultEvery = time.Second
	everyMin     = 10 * time.Millisecond
	// currentEvery is how often [Current] lines come unless an interval is asked for.
	currentEvery = 10 * time.Second
)

func (o *outputFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&o.style, "output", outputTable, "output: table, plain (lines as go-tpc prints them, also during the run) or json (the report)")
	c.Flags().StringVar(&o.series, "series", "", "write a time series to this file: CSV if its name ends in .csv, JSON lines if in .json, .jsonl or .ndjson")
	c.Flags().DurationVar(&o.every, "series-interval", defaultEvery, "interval of the time series, of a log of --hdr, and of the lines of --output plain (for those 10s by default)")
	o.html.add(c)
	c.Flags().StringVar(&o.hdr, "hdr", "", "write latencies as HDR histograms to this file: percentiles if its name ends in .hgrm (and beside it a file for each transaction), intervals in the log format if in .hlog")
}

func (o *outputFlags) check(jsonPath string, given func(string) bool) error {
	o.asked = given("series-interval")
	switch {
	case !slices.Contains(styles, o.style):
		return fmt.Errorf("--output %q: want %s", o.style, oneOf(styles))
	case o.style == outputJSON && jsonPath == "-":
		return fmt.Errorf("--output json and --json -: want one of them, both print the report")
	case o.asked && (o.every < everyMin || o.every > durationMax):
		return fmt.Errorf("--series-interval %v: want %v to %v", o.every, everyMin, durationMax)
	case o.asked && o.series == "" && o.style != outputPlain && !hdrIsLog(o.hdr):
		return fmt.Errorf("--series-interval %v: want --series FILE, --hdr FILE.hlog or --output plain with it", o.every)
	case o.hdr != "" && !hdrIsLog(o.hdr) && !hdrIsPercentiles(o.hdr):
		return fmt.Errorf("--hdr %q: want a name that ends in %s or %s", o.hdr, hdrPercentiles, hdrLog)
	}
	if o.series != "" {
		if err := load.SeriesFormat(o.series); err != nil {
			return fmt.Errorf("--series %q: %w", o.series, err)
		}
	}
	return o.html.check()
}

// live is what a run writes while it runs. The zero value writes nothing.
type live struct {
	every  time.Duration
	file   *os.File
	fresh  bool // file was made by this command
	series *load.Series
	err    error // of opening the series proper

	current      io.Writer // of [Current] lines; nil: none
	currentEvery time.Duration
	since        load.Interval // what the next lines are of

	asked     bool // every was given
	observers []func(load.Interval)
}

// openLive opens the file of the series before the run, so that a path that
// cannot be written costs nobody a run.
func (a *app) openLive(p *runPlan) (*live, error) {
	o := &p.output
	l := &live{every: o.every, currentEvery: o.every, asked: o.asked}
	if o.style == outputPlain {
		if l.current = a.stdout; p.json == "-" {
			l.current = a.stderr
		}
		if !o.asked {
			l.currentEvery = currentEvery
		}
		if o.series == "" {
			l.every = l.currentEvery
		}
	}
	if o.series == "" {
		return l, nil
	}
	_, err := os.Lstat(o.series)
	l.fresh = os.IsNotExist(err)
	if l.file, err = os.OpenFile(o.series, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
		return nil, fmt.Errorf("--series: want a file that can be written: %w", err)
	}
	return l, nil
}

// observe passes intervals to one more listener, at least so often unless the
// series has its own interval, or one was asked for.
func (l *live) observe(every time.Duration, f func(load.Interval)) {
	l.observers = append(l.observers, f)
	if l.file == nil && !l.asked {
		l.every = min(l.every, every)
	}
}

// interval is the driver's callback, nil if nobody listens.
func (l *live) interval() func(load.Interval) {
	if l.file == nil && l.current == nil && len(l.observers) == 0 {
		return nil
	}
	return func(i load.Interval) {
		for _, f := range l.observers {
			f(i)
		}
		if l.file != nil {
			l.write(i)
		}
		if l.current != nil {
			l.print(i)
		}
	}
}

// write hands an interval to the series; the first one replaces what the file
// held.
func (l *live) write(i load.Interval) {
	if l.series == nil && l.err == nil {
		_ = l.file.Truncate(0) // a pipe or a device has nothing to truncate
		l.series, l.err = load.NewSeries(l.file, l.file.Name())
	}
	if l.err == nil {
		l.series.Write(i)
	}
}

// print collects intervals and prints them when they are long enough.
func (l *live) print(i load.Interval) {
	if l.since.Types == nil {
		l.since.From = i.From
		for k := range i.Types {
			l.since.Types = append(l.since.Types, load.TypeRecord{Name: i.Types[k].Name, Latency: hist.New()})
		}
	}
	l.since.To = i.To
	for k := range i.Types {
		l.since.Types[k].Merge(&i.Types[k])
	}
	// Intervals end when a timer fires, some time after they should.
	if took := l.since.To - l.since.From; took >= l.currentEvery-l.every/2 {
		printLines(l.current, "[Current] ", took, l.since.Types)
		l.since = load.Interval{}
	}
	if i.Last { // what is left belongs to no later run
		l.since = load.Interval{}
	}
}

// close returns the first error of writing. It removes a new file that is empty.
func (l *live) close() error {
	if l.file == nil {
		return nil
	}
	err := l.err
	if l.series == nil && l.fresh {
		_ = os.Remove(l.file.Name())
	} else if l.series != nil && err == nil {
		err = l.series.Err()
	}
	if closing := l.file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("--series: %w", err)
	}
	return nil
}
