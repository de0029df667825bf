package main

import (
	"bytes"
	"fmt"
	"io"
)

// printPage prints the medians of all cells, the cells, and what follows them.
func printPage(w io.Writer, all []*result, rest string) error {
	var tables bytes.Buffer
	printAll(&tables, all)
	if err := printMedians(bytes.NewReader(tables.Bytes()), w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s%s", &tables, rest)
	return err
}

func printAll(w io.Writer, all []*result) {
	fmt.Fprintln(w, `## The writers

| store | rows | servers | writers | read as | alone/s | beside cold/s | beside hot/s | hot ÷ cold | pairs | CPU µs cold | CPU µs hot | hot ÷ cold | aborts ‰ cold | hot | offered/s | kept, cold | kept, hot | p99 ms cold | hot |
|---|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|`)
	for _, r := range all {
		c, h, pc, ph := &r.beside[0], &r.beside[1], &r.paced[0], &r.paced[1]
		fmt.Fprintf(w, "| %s | %d | %d | %d | %s | %.0f | %.0f | %.0f | **%.2f** | %.2f–%.2f | %.1f | %.1f | %.2f | %.1f | %.1f | %.0f | %.1f %% | **%.1f %%** | %.1f | %.1f |\n",
			r.name, r.rows, r.servers, r.writers, r.how, r.alone.rate(), c.rate(), h.rate(), h.rate()/c.rate(), r.pairs[0], r.pairs[len(r.pairs)-1],
			c.cpuUs(), h.cpuUs(), h.cpuUs()/c.cpuUs(), c.abortsPer(), h.abortsPer(),
			r.rate, 100*pc.kept(), 100*ph.kept(), pc.latency.QuantileUs(0.99)/1e3, ph.latency.QuantileUs(0.99)/1e3)
	}
	fmt.Fprintln(w, `
## The readers

| store | rows | servers | writers | read as | reads | ms cold | ms hot | rounds cold | hot | READs cold | hot | MiB READ cold | hot | went on as snapshots | data MiB | of them versions | client heap MiB |
|---|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|`)
	for _, r := range all {
		c, h := &r.beside[0], &r.beside[1]
		per := func(n uint64, w *window) float64 { return float64(n) / float64(w.reads) }
		const mib = 1 << 20
		fmt.Fprintf(w, "| %s | %d | %d | %d | %s | %d | %.1f | %.1f | %.0f | %.0f | %.0f | %.0f | %.1f | %.1f | %.2f | %.0f | %.1f | %.0f |\n",
			r.name, r.rows, r.servers, r.writers, r.how, c.reads+h.reads+r.paced[0].reads+r.paced[1].reads, c.readMs(), h.readMs(),
			per(c.rounds, c), per(h.rounds, h), per(c.counts.reads, c), per(h.counts.reads, h), per(c.counts.bytes, c)/mib, per(h.counts.bytes, h)/mib,
			per(h.continued, h), float64(h.bytes)/mib, float64(h.versions)/mib, float64(max(c.heap, h.heap))/mib)
	}
}
