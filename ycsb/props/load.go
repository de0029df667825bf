package props

import (
	"fmt"
	"strings"

	"github.com/magiconair/properties"
)

// Load reads property files and then name=value words. Later ones override
// earlier ones. It fails with ErrProperty.
func Load(files, values []string) (*properties.Properties, error) {
	p := properties.NewProperties()
	if len(files) > 0 {
		var err error
		if p, err = properties.LoadFiles(files, properties.UTF8, false); err != nil {
			return nil, fmt.Errorf("%w: -P %s: want readable property files: %w", ErrProperty, strings.Join(files, ","), err)
		}
	}
	for _, v := range values {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%w: -p %q: want name=value", ErrProperty, v)
		}
		if _, _, err := p.Set(name, value); err != nil {
			return nil, fmt.Errorf("%w: -p %q: %w", ErrProperty, v, err)
		}
	}
	return p, nil
}
