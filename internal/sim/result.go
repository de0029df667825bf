package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Result is the result of a simulated cluster. A test binary prints one for each seed,
// as a line, which package simulate reads.
type Result struct {
	Seed         uint64         `json:"seed"`
	Kind         string         `json:"kind"`
	Hash         string         `json:"hash"` // of the trace
	Events       int            `json:"events"`
	Lasted       time.Duration  `json:"lasted"` // in simulated time, ns
	Transactions int            `json:"transactions"`
	Counts       map[string]int `json:"counts,omitempty"`
	Parts        []string       `json:"parts,omitempty"` // of the case, all of which can be left out
	Failure      string         `json:"failure,omitempty"`
	Case         string         `json:"case,omitempty"` // of a failure: what the seed has drawn
	Tail         string         `json:"tail,omitempty"` // of a failure: the last events
}

const resultPrefix = "simulated: "

// Print writes the result as a line.
func (r *Result) Print(out io.Writer) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s%s\n", resultPrefix, raw)
	return err
}

// ParseResult reads a line of Print; ok is false if it is none.
func ParseResult(line string) (r Result, ok bool) {
	text, ok := strings.CutPrefix(line, resultPrefix)
	return r, ok && json.Unmarshal([]byte(text), &r) == nil
}
