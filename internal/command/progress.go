package command

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"drtmx/internal/cli"
	"drtmx/internal/load"
	"drtmx/tpcc/bench"
)

// progress shows one stage of a command as a bar. In a pipe it shows nothing.
// set and done are called by one goroutine at a time.
type progress struct {
	p    *mpb.Progress // nil: silent
	bar  *mpb.Bar
	text atomic.Pointer[string]
}

// isTerminal reports whether people are looking.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progressOf starts a bar.
func (a *app) progressOf(name string) *progress {
	if !isTerminal(a.stderr) {
		return &progress{}
	}
	p := &progress{p: mpb.New(mpb.WithOutput(a.stderr), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))}
	// A total that is not known at the start may be set later; the bar then
	// ends when it is removed, not when it is full.
	p.bar = p.p.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name, decor.WC{W: 12, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.Any(func(decor.Statistics) string {
			if text := p.text.Load(); text != nil {
				return "  " + *text
			}
			return ""
		})))
	return p
}

// set moves the bar and replaces the text behind it.
func (p *progress) set(done, total int64, format string, args ...any) {
	if p.p == nil {
		return
	}
	text := fmt.Sprintf(format, args...)
	p.text.Store(&text)
	p.bar.SetTotal(max(total, done), false)
	p.bar.SetCurrent(done)
}

// done removes the bar.
func (p *progress) done() {
	if p.p == nil {
		return
	}
	p.bar.Abort(true)
	p.p.Wait()
}

// runBar shows the progress of a run: a bar for the warm-up, and one for the
// measured interval.
type runBar struct {
	a      *app
	silent bool
	bar    *progress
	warm   bool
	count  int64 // transactions after which the run ends; 0: none
}

// runBar makes the bars of a run. They are silent where lines of the run appear.
func (a *app) runBar(p *runPlan) runBar {
	return runBar{a: a, silent: p.output.style == outputPlain, count: p.pace.count}
}

func (b *runBar) tick(t load.Progress) {
	if b.silent {
		return
	}
	if b.bar == nil || b.warm != t.WarmingUp {
		b.done()
		name := "running"
		if t.WarmingUp {
			name = "warming up"
		}
		b.bar, b.warm = b.a.progressOf(name), t.WarmingUp
	}
	if !t.WarmingUp && b.count > 0 && t.Of == 0 {
		b.bar.set(int64(t.Finished), b.count, "%d transactions, %s per second", t.Finished, cli.Number(bench.Ratio(float64(t.Finished), t.Elapsed.Seconds())))
		return
	}
	b.bar.set(int64(t.Elapsed), int64(t.Of), "%.1f of %v, %s transactions per second",
		t.Elapsed.Seconds(), t.Of, cli.Number(bench.Ratio(float64(t.Finished), t.Elapsed.Seconds())))
}

// done removes the bar, if there is one.
func (b *runBar) done() {
	if b.bar != nil {
		b.bar.done()
		b.bar = nil
	}
}
