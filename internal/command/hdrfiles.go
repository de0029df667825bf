package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drtmx/internal/cli"
	"drtmx/internal/hist"
	"drtmx/internal/load"
	"drtmx/tpcc/bench"
)

// Extensions of --hdr.
const (
	hdrPercentiles = ".hgrm"
	hdrLog         = ".hlog"
)

func hdrIsLog(path string) bool { return strings.EqualFold(filepath.Ext(path), hdrLog) }

func hdrIsPercentiles(path string) bool { return strings.EqualFold(filepath.Ext(path), hdrPercentiles) }

// hdrFiles are the files of --hdr: a log of intervals, or the percentiles of
// all transactions and of each type. A nil one is none.
type hdrFiles struct {
	log         *cli.OutFile
	percentiles map[string]*cli.OutFile // by hdrName

	writer *hist.Log
	base   time.Time // of the measured interval under way
	mark   string    // of the run under way
	err    error     // of the log
}

// hdrMark tells the runs of several numbers of clients apart.
func hdrMark(p *runPlan, clients int) string {
	if !p.ladder() {
		return ""
	}
	return fmt.Sprintf(".%d", clients)
}

// hdrName is the name of a file of percentiles: of a type, or of all if that
// is empty.
func hdrName(path, mark, name string) string {
	if name != "" {
		name = "." + name
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + mark + name + ext
}

// openHDR opens the files before the run.
func openHDR(p *runPlan) (h *hdrFiles, err error) {
	h = &hdrFiles{percentiles: map[string]*cli.OutFile{}}
	switch path := p.output.hdr; {
	case path == "":
	case hdrIsLog(path):
		h.log, err = cli.OpenOut("hdr", path)
	default:
		for _, n := range p.pace.clients {
			if err := h.open(path, hdrMark(p, n), bench.Names(p.config.Mix.Types())); err != nil {
				return h, err
			}
		}
	}
	return h, err
}

// open opens the files of percentiles of one mark.
func (h *hdrFiles) open(path, mark string, types []string) (err error) {
	for _, name := range append([]string{""}, types...) {
		file := hdrName(path, mark, name)
		if h.percentiles[file] != nil {
			continue // a design that is named twice
		}
		if h.percentiles[file], err = cli.OpenOut("hdr", file); err != nil {
			delete(h.percentiles, file)
			return err
		}
	}
	return nil
}

// begin begins the run of a number of clients.
func (h *hdrFiles) begin(p *runPlan, clients int) { h.mark = hdrMark(p, clients) }

// interval writes an interval to the log.
func (h *hdrFiles) interval(i load.Interval) {
	if i.From == 0 {
		h.base = time.Now().Add(-i.To)
	}
	if h.writer == nil && h.err == nil {
		h.writer, h.err = hist.NewLog(h.log, h.base)
	}
	for k := range i.Types {
		t := &i.Types[k]
		if r := t.Response(); h.err == nil && r.Count() > 0 {
			h.err = h.writer.Write(t.Name+h.mark, h.base.Add(i.From), h.base.Add(i.To), r)
		}
	}
}

// write writes the percentiles of runs with one mark, together.
func (h *hdrFiles) write(path, mark string, runs ...*bench.Report) error {
	runs = slices.DeleteFunc(runs, func(r *bench.Report) bool { return r.Record == nil })
	if len(h.percentiles) == 0 || len(runs) == 0 {
		return nil
	}
	e := bench.Entry{Runs: runs}
	var errs []error
	for _, name := range append([]string{""}, runs[0].Order()...) {
		errs = append(errs, e.Latency(name).WritePercentiles(h.percentiles[hdrName(path, mark, name)]))
	}
	return errors.Join(errs...)
}

func (h *hdrFiles) close() error {
	if h == nil {
		return nil
	}
	errs := []error{h.err, h.log.Close()}
	for _, f := range h.percentiles {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
