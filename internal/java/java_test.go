package java

import "testing"

func TestJavaHasToBe17OrLater(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		output string
		ok     bool
	}{
		"17 is enough":               {`openjdk version "17.0.15" 2025-04-15`, true},
		"a later one is":             {`openjdk version "25" 2025-09-16`, true},
		"11 is not":                  {`openjdk version "11.0.2" 2019-01-15`, false},
		"the old numbering is not":   {`java version "1.8.0_402"`, false},
		"an unknown program is not":  {`no such option`, false},
		"lines before it are passed": {"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version \"21.0.1\"", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := check(test.output); (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}
