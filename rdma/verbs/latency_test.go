//go:build verbs

package verbs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"drtmx/rdma"
)

// latencyEnv asks for TestLatencyBesidePerftest and says how many pairs of
// measurements to take.
const latencyEnv = "DRTMX_VERBS_LATENCY"

const (
	latencyBytes = 64
	latencyBatch = 16
	latencyIters = 1600 // a multiple of the batch
)

// perftest runs one of perftest's programs against a server of its own and
// returns the columns of its line of results. A client that comes before its
// server fails, or even waits for ever.
func perftest(t *testing.T, device, host string, args ...string) []string {
	t.Helper()
	args = append(args, "-d", device, "-z", "-F", "-s", strconv.Itoa(latencyBytes), "-n", strconv.Itoa(latencyIters))
	var said string
	for try := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		server := exec.CommandContext(ctx, args[0], args[1:]...)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second << try)
		out, err := exec.CommandContext(ctx, args[0], append(args[1:len(args):len(args)], host)...).CombinedOutput()
		_ = server.Process.Kill()
		_ = server.Wait()
		cancel()
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); err == nil && len(f) > 4 && f[0] == strconv.Itoa(latencyBytes) {
				return f
			}
		}
		said = fmt.Sprintf("%v: %s", err, out)
	}
	t.Fatalf("%v: %s", args, said)
	return nil
}

func microseconds(t *testing.T, column string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(column, 64)
	if err != nil || v <= 0 {
		t.Fatalf("perftest says %q, which is no time", column)
	}
	return v
}

// medianRead is the median latency of batches of n READs, in microseconds.
func medianRead(t *testing.T, c rdma.Conn, n int) float64 {
	t.Helper()
	const words = latencyBytes / 8
	var b rdma.Batch
	buf := make([]uint64, n*words)
	times := make([]time.Duration, latencyIters)
	for i := range times {
		b.Reset()
		for j := range n {
			b.Read(1, uint64(j)*1024, buf[j*words:(j+1)*words])
		}
		start := time.Now()
		if err := rdma.Do(t.Context(), c, &b); err != nil {
			t.Fatal(err)
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / 1e3
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// TestLatencyBesidePerftest measures a READ, alone and in batches, in turn with
// perftest's programs on the same device. The figures are for people; only
// their ratios mean anything on an emulated device.
func TestLatencyBesidePerftest(t *testing.T) {
	pairs, _ := strconv.Atoi(os.Getenv(latencyEnv))
	if pairs <= 0 {
		t.Skipf("%s does not ask for it", latencyEnv)
	}
	// perftest polls without end, and so do we here.
	p := newProvider(t, Options{Spin: 100 * time.Millisecond})
	host, err := p.deviceAddr()
	if err != nil {
		t.Fatal(err)
	}
	_, _, addr := start(t, "server")
	c, err := p.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	medianRead(t, c, latencyBatch)
	for _, m := range []struct {
		what string
		n    int
		args []string
		time func(f []string) float64
	}{
		{"1 READ", 1, []string{"ib_read_lat"}, func(f []string) float64 { return microseconds(t, f[4]) }}, // t_typical, the median
		{
			fmt.Sprintf("a batch of %d READs", latencyBatch), latencyBatch,
			// No more than one list of work requests is under way.
			[]string{"ib_read_bw", "-l", strconv.Itoa(latencyBatch), "-t", strconv.Itoa(latencyBatch), "-Q", strconv.Itoa(latencyBatch)},
			func(f []string) float64 { return latencyBatch / microseconds(t, f[4]) }, // millions of messages a second
		},
	} {
		var ours, theirs, crossings, ratios, rest []float64
		for range pairs {
			a, b, x := m.time(perftest(t, p.opts.Device, host.String(), m.args...)), medianRead(t, c, m.n), crossing(c.(*conn).cq)
			ours, theirs, crossings = append(ours, b), append(theirs, a), append(crossings, x)
			ratios, rest = append(ratios, b/a), append(rest, (b-2*x)/a)
		}
		t.Logf("latency: %s of %d B: drtmx %.1f µs, %s %.1f µs, ratio %.2f (%.2f to %.2f); less two crossings into C, %.2f µs each, %.2f (%.2f to %.2f) (medians of %d pairs)",
			m.what, latencyBytes, median(ours), strings.Join(m.args, " "), median(theirs), median(ratios), slices.Min(ratios), slices.Max(ratios),
			median(crossings), median(rest), slices.Min(rest), slices.Max(rest), pairs)
	}
}

// crossing is what it takes to call C and do nothing there, in microseconds: a
// batch takes one to be posted and one at least to complete.
func crossing(q *completions) float64 {
	const n = 5000
	start := time.Now()
	for range n {
		q.poll(0)
	}
	return float64(time.Since(start).Nanoseconds()) / n / 1e3
}
