package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// simCase is what is simulated: a seed, and how its case is changed.
type simCase struct {
	Seed    uint64
	Kind    string   // of the cluster; drawn if empty
	Order   uint64   // other delays
	Without []string // parts that are left out
}

// again returns the command that simulates the case again.
func (c simCase) again() string {
	s := fmt.Sprintf("make sim SEED=%d", c.Seed)
	if c.Kind != "" {
		s += fmt.Sprintf(" KIND='%s'", c.Kind)
	}
	if c.Order > 0 {
		s += fmt.Sprintf(" ORDER=%d", c.Order)
	}
	if len(c.Without) > 0 {
		s += fmt.Sprintf(" WITHOUT='%s'", strings.Join(c.Without, ","))
	}
	return s
}

// environ returns the environment of a process that runs n seeds from the case's own
// on.
func (c simCase) environ(n uint64) []string {
	return []string{
		fmt.Sprintf("DRTMX_SIM_SEEDS=%d:%d", c.Seed, n), "DRTMX_SIM_KIND=" + c.Kind, fmt.Sprintf("DRTMX_SIM_ORDER=%d", c.Order),
		"DRTMX_SIM_WITHOUT=" + strings.Join(c.Without, ","),
	}
}

// seedRange is a range of seeds. It is a flag.
type seedRange struct{ first, last uint64 } // last 0: no end

func (r *seedRange) open() bool { return r.last == 0 && r.first > 0 }

func (r *seedRange) String() string {
	switch {
	case r.first == 0:
		return ""
	case r.last == 0:
		return fmt.Sprintf("%d-", r.first)
	case r.last == r.first:
		return strconv.FormatUint(r.first, 10)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}

// Set reads a range such as 17, 1-2000 or 1-.
func (r *seedRange) Set(text string) error {
	from, to, isRange := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 63)
	last := first
	if err == nil && isRange {
		if last = 0; to != "" {
			last, err = strconv.ParseUint(to, 10, 63)
		}
	}
	if err != nil || first == 0 || last != 0 && last < first {
		return fmt.Errorf("want a seed above 0 or a range of them, such as 17 or 1-2000")
	}
	*r = seedRange{first, last}
	return nil
}

// readCases reads a file of cases, one a line: a seed, and perhaps a kind and an
// order. What follows # is a remark.
func readCases(path string) (cases []simCase, err error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		c := simCase{}
		c.Seed, err = strconv.ParseUint(fields[0], 10, 63)
		if len(fields) > 1 {
			c.Kind = fields[1]
		}
		if err == nil && len(fields) > 2 {
			c.Order, err = strconv.ParseUint(fields[2], 10, 63)
		}
		if err != nil || len(fields) > 3 {
			return nil, fmt.Errorf("%s:%d: %q: want a seed, a kind and an order", path, n, text)
		}
		cases = append(cases, c)
	}
	return cases, lines.Err()
}
