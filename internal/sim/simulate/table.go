package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// tableHead begins a page of runs.
const tableHead = `# Seeds that were simulated

` + "`make sim`" + `: whole clusters in simulated time, one for each seed. Some of them ran twice, in two
processes, and their traces must be equal. No seed may fail: what has failed once is in
` + "`internal/sim/kept.txt`" + `, with its cause.

    make sim SEEDS=1-1000 REPLAY=50 TABLE=results/seeds.md

| when (UTC) | commit | machine | seeds | clusters | a minute | ran twice | with another trace | failed |
|---|---|---|---|---|---|---|---|---|
`

// openTable opens a page for one more row, and begins it if it is new.
func openTable(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("-table: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() == 0 {
		_, err = f.WriteString(tableHead)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("-table: %w", err), f.Close())
	}
	return f, nil
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

// row is the line of a table for these runs.
func (r *runs) row(commit string, now time.Time) string {
	kind := ""
	if r.o.kind != "" {
		kind = " " + r.o.kind
	}
	failed := "none"
	if len(r.failed) > 0 {
		failed = strings.Trim(fmt.Sprint(r.failed), "[]")
	}
	seeds := r.o.seeds.String()
	if r.o.seeds.open() {
		seeds = fmt.Sprintf("%d-%d", r.o.seeds.first, r.next-1)
	}
	return fmt.Sprintf("| %s | %s | %d processors, %s, %d at a time | %s%s | %d | %.0f | %d | %d | %s |\n", now.UTC().Format("2006-01-02 15:04"), commit,
		runtime.NumCPU(), runtime.GOARCH, r.o.jobs, seeds, kind, r.clusters, float64(r.clusters)/now.Sub(r.began).Minutes(), r.replayed, r.differ, failed)
}
