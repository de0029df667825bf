package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// entry is one line of the index: a run of one system.
type entry struct {
	kind, workload string // ycsb and a to f, or tpcc and full
	threads, rep   int
	system         string
	status         int // exit status of the client; -1 if it could not be run
	// serverOps are the operations that the server counted, of TPC-C the
	// orders and payments; -1 if it counts none.
	serverOps    int64
	serverErrors int64
	file         string // of the output, without .out and .err
}

// readIndex reads index.tsv, which results/peers.sh writes.
func readIndex(dir string) ([]entry, error) {
	lines, err := readLines(filepath.Join(dir, "index.tsv"))
	if err != nil {
		return nil, err
	}
	var all []entry
	for i, line := range lines {
		f := strings.Split(line, "\t")
		if len(f) != 9 {
			return nil, fmt.Errorf("index.tsv:%d: %d columns, want 9", i+1, len(f))
		}
		var n [5]int64
		for j, col := range []int{2, 3, 5, 6, 7} {
			if n[j], err = strconv.ParseInt(f[col], 10, 64); err != nil {
				return nil, fmt.Errorf("index.tsv:%d: column %d is %q, want a number", i+1, col+1, f[col])
			}
		}
		all = append(all, entry{
			kind: f[0], workload: f[1], threads: int(n[0]), rep: int(n[1]), system: f[4],
			status: int(n[2]), serverOps: n[3], serverErrors: n[4], file: f[8],
		})
	}
	return all, nil
}

// readFacts reads facts.tsv: names and values.
func readFacts(dir string) (map[string]string, error) {
	lines, err := readLines(filepath.Join(dir, "facts.tsv"))
	if err != nil {
		return nil, err
	}
	facts := map[string]string{}
	for i, line := range lines {
		name, value, ok := strings.Cut(line, "\t")
		if !ok {
			return nil, fmt.Errorf("facts.tsv:%d: %q, want a name, a tab and a value", i+1, line)
		}
		facts[name] = value
	}
	return facts, nil
}

func readLines(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// series is one line of a report of go-ycsb or go-tpc.
type series struct {
	count     int64
	perSecond float64
	p99Us     float64
}

// block is the last report of an output, by name of the operation.
type block map[string]series

// lastBlock reads the lines "NAME - Takes(s): 1.0, Count: 2, …" of an output.
// An output of several phases has a report for each; earlier are the reports
// before the last one. Lines of single intervals are no report.
func lastBlock(dir, file string) (last block, earlier []block, err error) {
	f, err := os.Open(filepath.Join(dir, file+".out"))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	last = block{}
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if strings.Contains(line, " properties ****") && len(last) > 0 {
			earlier = append(earlier, last)
			last = block{}
		}
		if strings.HasPrefix(line, "[Current]") {
			continue
		}
		name, rest, ok := strings.Cut(line, " - Takes(s): ")
		if !ok {
			continue
		}
		if last[strings.TrimSpace(strings.TrimPrefix(name, "[Summary] "))], err = parseSeries(rest); err != nil {
			return nil, nil, fmt.Errorf("%s.out: %q: %w", file, line, err)
		}
	}
	return last, earlier, nil
}

// parseSeries reads what follows "Takes(s): ".
func parseSeries(text string) (series, error) {
	fields := map[string]float64{}
	for i, part := range strings.Split(text, ", ") {
		name, value, ok := strings.Cut(part, ": ")
		if i == 0 {
			name, value, ok = "Takes(s)", part, true
		}
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return series{}, fmt.Errorf("%q is no number with a name", part)
		}
		fields[name] = v
	}
	s := series{count: int64(fields["Count"]), perSecond: fields["OPS"], p99Us: fields["99th(us)"]}
	if tpm, ok := fields["TPM"]; ok {
		s.perSecond, s.p99Us = tpm/60, fields["99th(ms)"]*1000
	}
	if s.count <= 0 || s.perSecond <= 0 {
		return series{}, errors.New("no count or no rate")
	}
	return s, nil
}

// measured has the figures of a run, or the reason why it failed.
type measured struct {
	failed     string
	operations int64
	conflicts  int64 // operations of badger that conflicted with another transaction
	perSecond  float64
	p99Us      map[string]float64 // by kind of operation
}

// kindsOf are the operations that a workload consists of.
var kindsOf = map[string][]string{
	"a": {"READ", "UPDATE"}, "b": {"READ", "UPDATE"}, "c": {"READ"},
	"d": {"READ", "INSERT"}, "e": {"SCAN", "INSERT"}, "f": {"READ", "READ_MODIFY_WRITE"},
	"full": {"NEW_ORDER", "PAYMENT", "ORDER_STATUS", "DELIVERY", "STOCK_LEVEL"},
}

// measure reads and checks the output of a run: the client exited with status
// 0, no operation failed, every kind of operation took place, and the server
// counted the same number. A drtmx run, which loads in the same process, must
// also have loaded all records.
func measure(dir string, e entry, records int64) measured {
	switch {
	case e.status < 0:
		return measured{failed: lastError(dir, e.file)}
	case e.status > 0:
		return measured{failed: fmt.Sprintf("exit status %d: %s", e.status, lastError(dir, e.file))}
	}
	b, earlier, err := lastBlock(dir, e.file)
	if err != nil {
		return measured{failed: err.Error()}
	}
	m := measured{p99Us: map[string]float64{}}
	for _, kind := range kindsOf[e.workload] {
		s, ok := b[kind]
		if !ok {
			return measured{failed: "no " + kind + " took place"}
		}
		if fine, ok := b[kind+"/service"]; ok {
			s = fine
		}
		m.p99Us[kind] = s.p99Us
	}
	if e.kind == "ycsb" {
		m.addTotal(b)
	} else {
		for _, kind := range kindsOf[e.workload] {
			m.operations += b[kind].count
			m.perSecond += b[kind].perSecond
		}
	}
	failures := failuresOf(b)
	if failures > 0 && strings.HasPrefix(e.system, "badger") && strings.Contains(lastError(dir, e.file), badgerConflict) {
		m.conflicts, failures = failures, 0
	}
	if failures > 0 {
		m.failed = fmt.Sprintf("%d operations failed: %s", failures, lastError(dir, e.file))
	} else {
		m.failed = complaint(e, b, earlier, m.operations, records)
	}
	return m
}

// badgerConflict is badger's answer to a commit whose reads are out of date.
// go-ycsb's driver does not retry.
const badgerConflict = "Transaction Conflict"

// failuresOf counts the operations that failed. go-tpc counts failed ones under
// NAME_ERR.
func failuresOf(b block) (n int64) {
	for name, s := range b {
		if strings.HasSuffix(name, "_ERROR") || strings.HasSuffix(name, "_ERR") {
			n += s.count
		}
	}
	return n
}

// addTotal takes the workload's operations from TOTAL. Where a
// read-modify-write is a READ and an UPDATE, TOTAL counts both of them and not
// the whole.
func (m *measured) addTotal(b block) {
	total := b["TOTAL"]
	m.operations = total.count
	if _, separate := b["UPDATE"]; separate {
		m.operations -= b["READ_MODIFY_WRITE"].count
	}
	if total.count > 0 {
		m.perSecond = total.perSecond * float64(m.operations) / float64(total.count)
	}
}

// complaint returns what the run did not do, or "".
func complaint(e entry, b block, earlier []block, operations, records int64) string {
	expected := operations
	if e.kind == "tpcc" {
		// About one in a hundred of the NEW-ORDERs that go-tpc counts rolls
		// back by the rules and leaves no order.
		expected = b["NEW_ORDER"].count*97/100 - 10 + b["PAYMENT"].count
	}
	switch {
	case operations <= 0:
		return "no operation took place"
	case e.serverErrors > 0:
		return fmt.Sprintf("the server counted %d errors or records not found", e.serverErrors)
	case e.serverOps >= 0 && e.serverOps < expected:
		return fmt.Sprintf("the server counted %d operations, the client %d", e.serverOps, expected)
	case e.kind == "ycsb" && strings.HasPrefix(e.system, ours):
		if len(earlier) == 0 || earlier[0]["INSERT"].count != records {
			return fmt.Sprintf("not all of %d records were loaded", records)
		}
	}
	return ""
}

// maxReason bounds the text of a failure, in characters.
const maxReason = 160

// lastError is the last line that a client wrote to standard error, else to
// standard output.
func lastError(dir, file string) string {
	for _, suffix := range []string{".err", ".out"} {
		lines, err := readLines(filepath.Join(dir, file+suffix))
		if errors.Is(err, fs.ErrNotExist) || len(lines) == 0 {
			continue
		}
		last := strings.ReplaceAll(lines[len(lines)-1], "|", "/")
		if runes := []rune(last); len(runes) > maxReason {
			last = string(runes[:maxReason]) + "…"
		}
		return last
	}
	return "no output"
}
