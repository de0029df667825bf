package command

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/load"
	"drtmx/tpcc/bench"
)

// htmlFlag names the page of a command.
type htmlFlag struct{ path string }

func (h *htmlFlag) add(c *cobra.Command) {
	c.Flags().StringVar(&h.path, "html", "", "write a page with tables and plots to this file: throughput over time, latencies, CPU time, rounds; it needs no network")
}

func (h *htmlFlag) check() error {
	if h.path == "-" {
		return errors.New("--html -: want a file")
	}
	return nil
}

// htmlFile collects the runs of a page. A nil one collects nothing.
type htmlFile struct {
	file     *cli.OutFile
	every    time.Duration // of points
	timeline *bench.Timeline
	sections []bench.Section
}

// htmlPoints is how many points a plot over time has, if the run is long enough.
const htmlPoints = 50

// openHTML opens the file before the run.
func openHTML(flag htmlFlag, pace *paceFlags) (*htmlFile, error) {
	if flag.path == "" {
		return nil, nil
	}
	file, err := cli.OpenOut("html", flag.path)
	if err != nil {
		return nil, err
	}
	return &htmlFile{file: file, every: min(max(pace.duration/htmlPoints, everyMin), defaultEvery)}, nil
}

// observe makes the page follow a run.
func (h *htmlFile) observe(l *live) {
	if h == nil {
		return
	}
	h.timeline = &bench.Timeline{}
	l.observe(h.every, func(i load.Interval) { h.timeline.Add(i) })
}

// add adds the run that was observed: to the line with its label in the section
// of its mix.
func (h *htmlFile) add(label string, r *bench.Report) {
	if h == nil {
		return
	}
	timeline := h.timeline
	h.timeline = &bench.Timeline{} // of the next
	for i := range h.sections {
		s := &h.sections[i]
		if s.Title != r.Mix {
			continue
		}
		for k := range s.Entries {
			if e := &s.Entries[k]; e.Label == label {
				e.Runs = append(e.Runs, r)
				return
			}
		}
		s.Entries = append(s.Entries, bench.Entry{Label: label, Runs: []*bench.Report{r}, Timeline: timeline})
		return
	}
	h.sections = append(h.sections, bench.Section{Title: r.Mix, Entries: []bench.Entry{{Label: label, Runs: []*bench.Report{r}, Timeline: timeline}}})
}

// write writes the page, if something ran.
func (h *htmlFile) write(title string) error {
	if h == nil || len(h.sections) == 0 {
		return nil
	}
	var b bytes.Buffer
	if err := bench.WritePage(&b, title, h.sections); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	_, err := h.file.Write(b.Bytes())
	return err
}

func (h *htmlFile) close() error {
	if h == nil {
		return nil
	}
	return h.file.Close()
}
