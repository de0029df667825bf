// Command peers writes the page of results/peers.sh. It checks the outputs of
// go-ycsb and go-tpc that the script collected, compares them and prints
// tables. The tables mark a system that did not complete its work as failed.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strconv"
)

func main() {
	raw := flag.String("raw", "results/raw/peers", "what results/peers.sh collected")
	out := flag.String("o", "results/peers.md", "the page to write")
	flag.Parse()
	if err := write(*raw, *out); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func write(raw, out string) error {
	facts, err := readFacts(raw)
	if err != nil {
		return err
	}
	records, err := strconv.ParseInt(facts["records"], 10, 64)
	if err != nil {
		return fmt.Errorf("facts.tsv: records is %q, want a number", facts["records"])
	}
	index, err := readIndex(raw)
	if err != nil {
		return err
	}
	c := collect(index, func(e entry) measured { return measure(raw, e, records) })
	var b bytes.Buffer
	(&page{w: &b, facts: facts, cells: c}).write()
	return os.WriteFile(out, b.Bytes(), 0o644)
}
