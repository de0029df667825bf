package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// tableHead begins a page of runs.
const tableHead = `# Seeds that were simulated

` + "`make sim`" + `: whole clusters in simulated time, one for each seed. Some of them ran twice, in two
processes, and their traces must be equal. No seed may fail: what has failed once and was mended is
in ` + "`internal/sim/kept.txt`" + `, with its cause. Crashes are those of data servers with a disk, also
while they recovered from one: after each, the data was recovered, and every cluster was checked at
its end for transactions that were acknowledged and are missing, done twice or done in part.

    make sim SEEDS=1-1000 REPLAY=50 TABLE=results/seeds.md

| when (UTC) | commit | machine | seeds | clusters | crashes | a minute | ran twice | with another trace | failed |
|---|---|---|---|---|---|---|---|---|---|
`

// page is the file that a run adds its row to.
type page struct {
	f      *os.File
	commit string
	made   bool // by this run
}

// openPage opens a page for one more row, of a commit, so that a page that cannot be
// written is refused before hours of runs.
func openPage(path, commit string) (*page, error) {
	const flags = os.O_CREATE | os.O_APPEND | os.O_RDWR
	f, err := os.OpenFile(path, flags|os.O_EXCL, 0o644)
	made := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, flags, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("-table: %w", err)
	}
	return &page{f, commit, made}, nil
}

// add adds the row of a run, below the head if it is the first.
func (p *page) add(r *runs, now time.Time, interrupted bool) error {
	row := r.row(p.commit, now, interrupted)
	st, err := p.f.Stat()
	if err == nil {
		if st.Size() == 0 {
			row = tableHead + row
		}
		_, err = p.f.WriteString(row)
	}
	if err != nil {
		return fmt.Errorf("-table: %w", err)
	}
	return nil
}

// close closes the page, and removes it if this run has made it and there is no row: then
// the run never began.
func (p *page) close() error {
	st, err := p.f.Stat()
	if err == nil && p.made && st.Size() == 0 {
		err = os.Remove(p.f.Name())
	}
	if err = errors.Join(err, p.f.Close()); err != nil {
		return fmt.Errorf("-table: %w", err)
	}
	return nil
}

// commit names the commit that is simulated, and says if files differ from it.
func commit(ctx context.Context) (string, error) {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("-table: the commit: %w", err)
	}
	name := strings.TrimSpace(string(head))
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", "*.go", "go.mod").Output()
	if err != nil {
		return "", fmt.Errorf("-table: the commit: %w", err)
	}
	if len(changed) > 0 {
		name += ", changed"
	}
	return name, nil
}

// row returns the line of a table for these runs: the seeds that they have begun with,
// and how many clusters came to an end.
func (r *runs) row(commit string, now time.Time, interrupted bool) string {
	seeds := "kept"
	if r.next > r.o.seeds.first {
		seeds = fmt.Sprintf("%d-%d", r.o.seeds.first, r.next-1)
	}
	if r.o.kind != "" {
		seeds += " " + r.o.kind
	}
	if interrupted {
		seeds += ", interrupted"
	}
	failed := "none"
	if len(r.failed) > 0 {
		failed = strings.Trim(fmt.Sprint(r.failed), "[]")
	}
	return fmt.Sprintf("| %s | %s | %d processors, %s, %d at a time | %s | %d | %d | %.0f | %d | %d | %s |\n", now.UTC().Format("2006-01-02 15:04"), commit,
		runtime.NumCPU(), runtime.GOARCH, r.o.jobs, seeds, r.clusters, r.crashes, float64(r.clusters)/now.Sub(r.began).Minutes(), r.replayed, r.differ, failed)
}
