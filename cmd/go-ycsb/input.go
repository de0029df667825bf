package main

import (
	"fmt"
	"strconv"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/ycsb/props"
)

// drivers are the names of the databases in this program.
var drivers = []string{"drtmx"}

// input has the flags of all commands.
type input struct {
	files  []string
	values []string
	table  string

	threads, target, interval int
}

func (in *input) add(c *cobra.Command, load bool) {
	c.Flags().StringSliceVarP(&in.files, "property_file", "P", nil, "read a property file; later files override earlier ones")
	c.Flags().StringArrayVarP(&in.values, "prop", "p", nil, "set a property, as name=value; overrides files")
	c.Flags().StringVar(&in.table, "table", "", `the table, instead of property "table" (`+prop.TableNameDefault+`)`)
	if load {
		c.Flags().IntVar(&in.threads, "threads", 1, `threads, instead of property "threadcount"`)
		c.Flags().IntVar(&in.target, "target", 0, `operations per second to attempt, instead of property "target"; 0 means as many as possible`)
		c.Flags().IntVar(&in.interval, "interval", 10, `seconds between reports, instead of property "measurement.interval"; 0 means none`)
	}
}

// properties combines property files, -p and flags; later ones override earlier ones.
func (in *input) properties(c *cobra.Command) (*properties.Properties, error) {
	p, err := props.Load(in.files, in.values)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct{ flag, name, value string }{
		{"threads", prop.ThreadCount, strconv.Itoa(in.threads)},
		{"target", prop.Target, strconv.Itoa(in.target)},
		{"interval", prop.LogInterval, strconv.Itoa(in.interval)},
		{"table", prop.TableName, in.table},
	} {
		if c.Flags().Changed(f.flag) {
			if _, _, err := p.Set(f.name, f.value); err != nil {
				return nil, cli.Usagef("--%s: %w", f.flag, err)
			}
		}
	}
	r := props.NewReader(p)
	if !r.Has(prop.ThreadCount) { // go-ycsb's redis driver requires it
		if _, _, err := p.Set(prop.ThreadCount, "1"); err != nil {
			return nil, err
		}
	}
	r.CheckNames()
	return p, r.Err()
}

// database checks the positional argument, the name of a database.
func database(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usagef("%s: name a database: %s", c.CommandPath(), props.Choices(drivers))
	}
	if len(args) > 1 {
		return cli.Usagef("%s: unexpected argument %q, want one database and flags", c.CommandPath(), args[1])
	}
	if goycsb.GetDBCreator(args[0]) == nil {
		return cli.Usagef("%s: database %q is not in this program, want %s", c.CommandPath(), args[0], props.Choices(drivers))
	}
	return nil
}

// open opens the database with a name.
func open(name string, p *properties.Properties) (goycsb.DB, error) {
	db, err := goycsb.GetDBCreator(name).Create(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return db, nil
}
