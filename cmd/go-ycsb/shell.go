package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pingcap/go-ycsb/pkg/prop"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"drtmx/internal/cli"
)

func (a *app) shellCommand() *cobra.Command {
	var in input
	c := &cobra.Command{
		Use:   "shell drtmx",
		Short: "Read, scan, insert, update and delete records by hand",
		Args:  database,
		RunE: func(c *cobra.Command, args []string) (err error) {
			p, err := in.properties(c)
			if err != nil {
				return err
			}
			db, err := open(args[0], p)
			if err != nil {
				return err
			}
			defer func() {
				if failed := db.Close(); err == nil {
					err = failed
				}
			}()
			s := &shell{db: db, table: p.GetString(prop.TableName, prop.TableNameDefault), out: a.stdout}
			return s.loop(c.Context(), a.stdin)
		},
	}
	in.add(c, false)
	return c
}

// shell is a session of commands.
type shell struct {
	db    goycsb.DB
	table string
	out   io.Writer
}

// shellCommands are the commands, with their arguments.
var shellCommands = []struct {
	name, args, help string
	least            int
	run              func(*shell, context.Context, []string) error
}{
	{"read", "key [field0 field1 ...]", "read a record", 1, (*shell).read},
	{"scan", "key recordcount [field0 field1 ...]", "read records from a key on", 2, (*shell).scan},
	{"insert", "key field0=value0 [field1=value1 ...]", "insert a record", 2, (*shell).insert},
	{"update", "key field0=value0 [field1=value1 ...]", "write fields of a record", 2, (*shell).update},
	{"delete", "key", "delete a record", 1, (*shell).delete},
	{"table", "[name]", "show or set the table", 0, (*shell).setTable},
	{"exit", "", "leave", 0, nil},
}

const prompt = "\033[31m»\033[0m "

// loop runs commands until the input ends.
func (s *shell) loop(ctx context.Context, in io.Reader) error {
	ctx = s.db.InitThread(ctx, 0, 1)
	defer s.db.CleanupThread(ctx)
	show := ""
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		show = prompt
	}
	lines := make(chan string)
	go func() { // a signal must end a shell that waits for input
		defer close(lines)
		for input := bufio.NewScanner(in); input.Scan(); {
			select {
			case lines <- input.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		fmt.Fprint(s.out, show)
		select {
		case <-ctx.Done():
			return cli.ErrInterrupted
		case line, ok := <-lines:
			words := strings.Fields(line)
			switch {
			case !ok || len(words) > 0 && words[0] == "exit":
				return nil
			case len(words) > 0:
				s.command(ctx, words[0], words[1:])
			}
		}
	}
}

func (s *shell) command(ctx context.Context, name string, args []string) {
	for _, c := range shellCommands {
		if c.name != name {
			continue
		}
		if len(args) < c.least {
			fmt.Fprintf(s.out, "want %s %s\n", c.name, c.args)
		} else if err := c.run(s, ctx, args); err != nil {
			fmt.Fprintln(s.out, err)
		}
		return
	}
	if name != "help" {
		fmt.Fprintf(s.out, "unknown command %q\n", name)
	}
	for _, c := range shellCommands {
		fmt.Fprintf(s.out, "  %-50s %s\n", c.name+" "+c.args, c.help)
	}
}

func (s *shell) show(row map[string][]byte) {
	for _, field := range slices.Sorted(maps.Keys(row)) {
		fmt.Fprintf(s.out, "%s=%q\n", field, row[field])
	}
}

func (s *shell) read(ctx context.Context, args []string) error {
	row, err := s.db.Read(ctx, s.table, args[0], args[1:])
	switch {
	case err != nil:
		fmt.Fprintf(s.out, "Read %s failed %v\n", args[0], err)
		return nil
	case row == nil:
		fmt.Fprintf(s.out, "Read empty for %s\n", args[0])
		return nil
	}
	fmt.Fprintf(s.out, "Read %s ok\n", args[0])
	s.show(row)
	return nil
}

func (s *shell) scan(ctx context.Context, args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil || n < 1 {
		return fmt.Errorf("invalid record count %s for scan", args[1])
	}
	rows, err := s.db.Scan(ctx, s.table, args[0], n, args[2:])
	if err != nil {
		fmt.Fprintf(s.out, "Scan from %s with %d failed %v\n", args[0], n, err)
		return nil
	}
	if len(rows) == 0 {
		fmt.Fprintln(s.out, "0 records")
		return nil
	}
	const line = "--------------------------------"
	fmt.Fprintln(s.out, line)
	for i, row := range rows {
		fmt.Fprintf(s.out, "Record %d\n", i+1)
		s.show(row)
	}
	fmt.Fprintln(s.out, line)
	return nil
}

// assignments parses field=value words.
func assignments(args []string) (map[string][]byte, error) {
	values := map[string][]byte{}
	for _, arg := range args {
		field, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want field=value", arg)
		}
		values[field] = []byte(value)
	}
	return values, nil
}

func (s *shell) insert(ctx context.Context, args []string) error {
	return s.write("Insert", args, func(values map[string][]byte) error {
		return s.db.Insert(ctx, s.table, args[0], values)
	})
}

func (s *shell) update(ctx context.Context, args []string) error {
	return s.write("Update", args, func(values map[string][]byte) error {
		return s.db.Update(ctx, s.table, args[0], values)
	})
}

func (s *shell) delete(ctx context.Context, args []string) error {
	return s.write("Delete", args[:1], func(map[string][]byte) error {
		return s.db.Delete(ctx, s.table, args[0])
	})
}

func (s *shell) write(what string, args []string, do func(map[string][]byte) error) error {
	values, err := assignments(args[1:])
	if err != nil {
		return err
	}
	if err := do(values); err != nil {
		fmt.Fprintf(s.out, "%s %s failed %v\n", what, args[0], err)
		return nil
	}
	fmt.Fprintf(s.out, "%s %s ok\n", what, args[0])
	return nil
}

func (s *shell) setTable(_ context.Context, args []string) error {
	if len(args) > 0 {
		s.table = args[0]
	}
	fmt.Fprintf(s.out, "Using table %s\n", s.table)
	return nil
}
