package main

import (
	"io"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress shows one stage of a command as a bar. In a pipe it shows nothing.
// Methods are called by one goroutine at a time.
type progress struct {
	p   *mpb.Progress // nil: silent
	bar *mpb.Bar
}

// isTerminal reports whether people are looking.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progressOf starts a bar; unit is appended to the count, with a space in front.
func (a *app) progressOf(name, unit string, total int64) *progress {
	if !isTerminal(a.stderr) {
		return &progress{}
	}
	p := mpb.New(mpb.WithOutput(a.stderr), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))
	bar := p.AddBar(total, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name, decor.WC{W: 12, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.Current(0, "  %d"+unit)))
	return &progress{p: p, bar: bar}
}

// timeOf starts a bar over a span of time.
func (a *app) timeOf(name string, of time.Duration) *progress {
	if !isTerminal(a.stderr) {
		return &progress{}
	}
	p := mpb.New(mpb.WithOutput(a.stderr), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))
	bar := p.AddBar(int64(of), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name, decor.WC{W: 12, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return time.Duration(s.Current).Round(time.Second).String() + " of " + of.String()
		})))
	return &progress{p: p, bar: bar}
}

// set moves the bar; total may have become known better.
func (p *progress) set(done, total int64) {
	if p.p == nil {
		return
	}
	p.bar.SetTotal(max(total, done+1), false) // a full bar would complete by itself
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
