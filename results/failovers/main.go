// Command failovers adds up reports of drtmx tpcc run --chaos, and prints tables;
// results/failovers.sh makes them. Its status is 1 if one of them has found a fault.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// piece is what is used of a report.
type piece struct {
	Kinds        []string       `json:"chaos"`
	Seed         uint64         `json:"seed"`
	Fabric       string         `json:"fabric"`
	DurationS    float64        `json:"duration_s"`
	Events       []event        `json:"events"`
	Failovers    int            `json:"failovers"`
	Moves        int            `json:"moves"`
	Rest         latency        `json:"rest"`
	Beside       latency        `json:"beside"`
	Returns      int            `json:"returns"`
	Acknowledged int            `json:"acknowledged"`
	Refused      int            `json:"refused"`
	Unknown      int            `json:"unknown"`
	Errors       map[string]int `json:"errors"`
	Patient      map[string]int `json:"patient_errors"`
	Views        int            `json:"views"`
	StillViews   int            `json:"still_views"`
	LateViews    int            `json:"late_views"`
	Stale        int            `json:"stale"`
	Lost         int            `json:"lost"`
	Doubled      int            `json:"doubled"`
	Wrong        int            `json:"wrong"`
	Phantom      int            `json:"phantom"`
	Faults       []string       `json:"faults"`
	Commit       string         `json:"commit"`
	Started      time.Time      `json:"started"`
	Error        string         `json:"error"`
}

// latency is of NEW-ORDERs.
type latency struct {
	Count   int     `json:"count"`
	P50us   float64 `json:"p50_us"`
	P99us   float64 `json:"p99_us"`
	WorstUs float64 `json:"worst_us"`
}

type event struct {
	Kind     string    `json:"kind"`
	From     string    `json:"from"`
	Stalls   []float64 `json:"stalls_s"`
	Returned []struct {
		StallS float64 `json:"stall_s"`
	} `json:"returned"`
}

func main() {
	all, err := readAll(os.Args[1:])
	if err == nil {
		err = tables(os.Stdout, all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failovers:", err)
		os.Exit(1)
	}
}

// readAll reads reports, which must be of one commit.
func readAll(files []string) (all []piece, err error) {
	if len(files) == 0 {
		return nil, errors.New("want the reports of pieces")
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var p piece
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, p)
		if p.Commit != all[0].Commit {
			return nil, fmt.Errorf("%s is of commit %s, another report of %s", name, p.Commit, all[0].Commit)
		}
	}
	slices.SortFunc(all, func(a, b piece) int { return int(a.Seed) - int(b.Seed) })
	return all, nil
}

// tables prints the tables. Its error names the faults of the pieces.
func tables(w io.Writer, all []piece) (err error) {
	total, events := piece{}, 0
	stalls := map[string][]float64{}
	first, last := all[0].Started, all[0].Started
	for i := range all {
		p := &all[i]
		if p.Error != "" || len(p.Faults) > 0 || p.Lost+p.Doubled+p.Wrong+p.Phantom+p.Stale > 0 {
			err = errors.Join(err, fmt.Errorf("seed %d: %s %s", p.Seed, p.Error, strings.Join(p.Faults, "; ")))
		}
		total.add(p)
		events += len(p.Events)
		for _, e := range p.Events {
			kind := e.Kind
			if e.From != "" {
				kind += " from " + e.From
			}
			stalls[kind] = append(stalls[kind], e.Stalls...)
			for _, r := range e.Returned {
				stalls["return to the own host"] = append(stalls["return to the own host"], r.StallS)
			}
		}
		if p.Started.Before(first) {
			first = p.Started
		}
		if p.Started.After(last) {
			last = p.Started
		}
	}
	fmt.Fprintf(w, "Commit %s, %s, %d pieces: **%d failovers** and %d moves in %d events; %d transactions that write were acknowledged; lost %d, doubled %d, wrong %d, phantom %d; stale %d of %d Views, %d of these late.\n\n",
		all[0].Commit, days(first, last), len(all), total.Failovers, total.Moves, events, total.Acknowledged, total.Lost, total.Doubled, total.Wrong, total.Phantom,
		total.Stale, total.Views+total.StillViews, total.LateViews)
	fmt.Fprintln(w, "| | data servers | stall: least, s | median | 90 % | worst |\n|---|--:|--:|--:|--:|--:|")
	for _, kind := range slices.Sorted(maps.Keys(stalls)) {
		v := slices.Sorted(slices.Values(stalls[kind]))
		if len(v) == 0 {
			fmt.Fprintf(w, "| %s | 0 | | | | |\n", kind)
			continue
		}
		fmt.Fprintf(w, "| %s | %d | %.2f | %.2f | %.2f | %.2f |\n", kind, len(v), v[0], v[len(v)/2], v[len(v)*9/10], v[len(v)-1])
	}
	fmt.Fprintln(w, "\n| seed | kinds | fabric | s | events | failovers | moves | returns | acknowledged | refused | without an answer | errors | of patient clients | late Views | lost, doubled, wrong, phantom, stale |\n|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|---|--:|---|")
	for i := range all {
		p := &all[i]
		fmt.Fprintf(w, "| %d | %s | %s | %.0f | %d | %d | %d | %d | %d | %d | %d | %s | %s | %d | %d, %d, %d, %d, %d |\n", p.Seed, strings.Join(p.Kinds, ", "), p.Fabric, p.DurationS,
			len(p.Events), p.Failovers, p.Moves, p.Returns, p.Acknowledged, p.Refused, p.Unknown, counts(p.Errors), counts(p.Patient), p.LateViews, p.Lost, p.Doubled, p.Wrong, p.Phantom, p.Stale)
	}
	fmt.Fprintln(w, "\nNEW-ORDERs of all clients that were acknowledged, while nothing was done to a host and beside events, from their beginning to their end:\n\n| seed | kinds | at rest | p50, ms | p99 | beside events | p50, ms | p99 | worst | p99 beside ÷ at rest |\n|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for i := range all {
		p := &all[i]
		fmt.Fprintf(w, "| %d | %s | %d | %.2f | %.2f | %d | %.2f | %.2f | %.0f | %.2f |\n", p.Seed, strings.Join(p.Kinds, ", "), p.Rest.Count, p.Rest.P50us/1e3, p.Rest.P99us/1e3,
			p.Beside.Count, p.Beside.P50us/1e3, p.Beside.P99us/1e3, p.Beside.WorstUs/1e3, p.Beside.P99us/max(p.Rest.P99us, 1))
	}
	return err
}

func (t *piece) add(p *piece) {
	t.Failovers += p.Failovers
	t.Moves += p.Moves
	t.Acknowledged += p.Acknowledged
	t.Views += p.Views
	t.StillViews += p.StillViews
	t.LateViews += p.LateViews
	t.Stale += p.Stale
	t.Lost += p.Lost
	t.Doubled += p.Doubled
	t.Wrong += p.Wrong
	t.Phantom += p.Phantom
}

func days(first, last time.Time) string {
	a, b := first.UTC().Format(time.DateOnly), last.UTC().Format(time.DateOnly)
	if a == b {
		return a
	}
	return a + " to " + b
}

func counts(by map[string]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		all = append(all, fmt.Sprintf("%d %s", by[k], k))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
